"""Failures that people reported in public, each with the outcome that is right; `make scenarios` makes a table of them."""
