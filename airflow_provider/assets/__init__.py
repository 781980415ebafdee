"""Models as Airflow assets: conditional events, and how a consumer reads them."""
