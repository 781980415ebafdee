"""`airflow ray-train ...`: look at experiments, ask what a try would do, check a setup, clean up."""
