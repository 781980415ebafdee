"""Tasks that train nothing: a test records experiments for them, of any size and in any state."""

from __future__ import annotations

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

with DAG("recorded", schedule=None, catchup=False):
    for task_id in ("every_state", "ten_thousand", "one", "away", "nothing"):
        EmptyOperator(task_id=task_id)
