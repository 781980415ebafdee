"""The experiment's object store behind an Airflow AWS connection, and how the cluster reaches the same bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.core.spec import StorageConfig
from airflow_provider.hooks.s3_clients import PATIENT, Patience, SharedS3Client, s3_hook

if TYPE_CHECKING:
    from airflow_provider.storage.object_store import ObjectStore


def open_experiment(
    uri: str,
    *,
    aws_conn_id: str | None,
    storage_path: str | None = None,
    patience: Patience = PATIENT,
    team_name: str | None = None,
) -> ObjectStore:
    """The object store rooted at the experiment. Credentials are fetched at use, so they can't age in a client.

    `patience` is how long a request to S3 may take. `storage_path` is the directory that must exist for a new experiment on a
    local or shared one: an unmounted share is not an empty experiment. Raises InvalidConfig for a URI that is neither S3 nor
    an absolute path. `team_name`: see `s3_hook`.
    """
    from airflow_provider.storage.object_store import open_object_store

    if not uri.startswith("s3://"):
        return open_object_store(uri, anchor=storage_path)

    return open_object_store(uri, client_factory=SharedS3Client(aws_conn_id, patience=patience, team_name=team_name))


def cluster_storage(config: StorageConfig, *, uri: str, aws_conn_id: str | None) -> StorageConfig:
    """The storage settings that travel: what the author set, else endpoint and region of the AWS connection."""
    if not uri.startswith("s3://") or (config.endpoint_url and config.region):
        return config
    hook = s3_hook(aws_conn_id)
    endpoint = config.endpoint_url or hook.conn_config.get_service_endpoint_url("s3")
    region = config.region or hook.region_name
    data = config.model_dump() | {"endpoint_url": endpoint, "region": region}
    return StorageConfig.rendered(data, parameter="storage_config (with the AWS connection's endpoint)")
