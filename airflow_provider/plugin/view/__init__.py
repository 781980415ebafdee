"""From facts to what the page shows: pure functions, without Airflow, the bucket or HTML."""
