"""Airflow on another Python than the cluster's: `make pythons`."""
