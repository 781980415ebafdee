"""Tests of what runs on the cluster, without one."""
