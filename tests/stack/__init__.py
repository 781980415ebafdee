"""The real services that tests, `make demo` and benchmarks run on: SeaweedFS (S3), Ray, Postgres, Airflow.

`with Stack(dags=[...]) as stack:` starts them; `python -m tests.stack` keeps them up for trying a Dag of your own.
"""

from tests.stack.airflow_client import AirflowClient
from tests.stack.airflow_services import AirflowComponent, AirflowServices
from tests.stack.postgres import PostgresServer
from tests.stack.process import HeldProcess, Service, StackError, find_processes, free_port, wait_until
from tests.stack.ray_cluster import RayCluster
from tests.stack.s3 import S3Server
from tests.stack.services import ALL_PARTS, Stack

__all__ = [
    "ALL_PARTS",
    "AirflowClient",
    "AirflowComponent",
    "AirflowServices",
    "HeldProcess",
    "PostgresServer",
    "RayCluster",
    "S3Server",
    "Service",
    "Stack",
    "StackError",
    "find_processes",
    "free_port",
    "wait_until",
]
