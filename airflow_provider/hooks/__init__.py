"""Airflow connections turned into clients: the Ray dashboard and the experiment's object store."""
