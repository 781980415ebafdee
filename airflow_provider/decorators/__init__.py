"""Airflow's room for decorators."""
