"""Tests of the provider, and the real services they run on."""
