"""Airflow provider for Ray Train: resilient training jobs with verified restore and checkpoint lineage."""

__version__ = "0.1.0"
