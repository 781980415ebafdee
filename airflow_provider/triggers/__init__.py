"""Waiting for a job: the same waiter in the triggerer (deferrable) and in the worker (blocking)."""
