"""Sensors that read the bucket only: they work while the cluster is down, and from another DAG or deployment."""
