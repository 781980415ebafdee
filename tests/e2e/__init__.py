"""Whole systems: real Ray, real S3, real Airflow."""
