"""The experiment's store behind an Airflow connection, and how the cluster is told to reach the same bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.spec import StorageConfig
from airflow_provider.hooks.experiment import cluster_storage, open_experiment

URI = "s3://models/churn"


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"endpoint_url": "http://s3.local:8333", "region_name": "eu-central-1"}
    connection = {"conn_type": "aws", "login": "AKIA1", "password": "s3cret", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_AWS_TEST", json.dumps(connection))


def test_endpoint_and_region_of_the_aws_connection_travel_and_its_keys_do_not() -> None:
    config = cluster_storage(StorageConfig(), uri=URI, aws_conn_id="aws_test")
    assert (config.endpoint_url, config.region) == ("http://s3.local:8333", "eu-central-1")
    assert "s3cret" not in config.model_dump_json()
    assert "AKIA1" not in config.model_dump_json()


def test_what_the_author_set_wins() -> None:
    own = StorageConfig(endpoint_url="http://s3.cluster:8333", force_virtual_addressing=True)
    config = cluster_storage(own, uri=URI, aws_conn_id="aws_test")
    assert (config.endpoint_url, config.region) == ("http://s3.cluster:8333", "eu-central-1")
    assert config.force_virtual_addressing


def test_a_connection_is_not_read_where_nothing_is_missing() -> None:
    own = StorageConfig(endpoint_url="http://s3.cluster:8333", region="us-east-1")
    assert cluster_storage(own, uri=URI, aws_conn_id="aws_that_does_not_exist") is own


def test_a_shared_directory_needs_no_connection(tmp_path: Path) -> None:
    config = StorageConfig()
    assert cluster_storage(config, uri="/shared/x", aws_conn_id="aws_that_does_not_exist") is config
    store = open_experiment(str(tmp_path / "x"), aws_conn_id=None, storage_path=str(tmp_path))
    assert store.create_if_absent("owners/000001.json", b"{}")
    assert (tmp_path / "x" / "owners" / "000001.json").exists()


def test_an_unmounted_share_is_not_an_empty_experiment(tmp_path: Path) -> None:
    gone = tmp_path / "unmounted"
    with pytest.raises(Exception, match="unmounted"):
        open_experiment(str(gone / "x"), aws_conn_id=None, storage_path=str(gone)).read("owners/000001.json")


def test_each_s3_client_has_fresh_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook keeps its credentials for ever, and a training outlives them."""
    made: list[object] = []

    class Hook:
        def __init__(self, **options: object) -> None:
            assert options["aws_conn_id"] == "aws_test"
            made.append(self)

        def get_conn(self) -> object:
            return object()

    monkeypatch.setattr("airflow.providers.amazon.aws.hooks.s3.S3Hook", Hook)
    factories = []
    monkeypatch.setattr(
        "airflow_provider.storage.object_store.open_object_store",
        lambda _, *, client_factory: factories.append(client_factory),
    )
    open_experiment(URI, aws_conn_id="aws_test")
    assert made == [], "opening reads no connection"
    factories[0]()
    factories[0]()
    assert len(made) == 2


def test_another_store_is_refused() -> None:
    with pytest.raises(InvalidConfig):
        open_experiment("gs://bucket/x", aws_conn_id=None)
