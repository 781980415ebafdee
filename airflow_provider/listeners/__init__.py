"""Listeners that Airflow calls in its own processes."""
