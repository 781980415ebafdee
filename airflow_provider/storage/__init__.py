"""The experiment's bucket as seen from Airflow: one small object-store protocol, its adapters, and the typed records."""
