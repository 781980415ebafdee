"""Retry policies for Airflow."""
