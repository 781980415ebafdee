"""The experiment's store behind an Airflow connection, and how the cluster is told to reach the same bucket."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def client_of(uri: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """What a store at `uri` gets its client from."""
    factories: list[Callable[[], Any]] = []
    with monkeypatch.context() as patched:
        patched.setattr(
            "airflow_provider.storage.object_store.open_object_store",
            lambda _, *, client_factory: factories.append(client_factory),
        )
        open_experiment(uri, aws_conn_id="aws_test")
    return factories[0]


def test_stores_behind_one_connection_share_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs 12 MB: a triggerer with 1,000 of them would need 12 GB."""
    first, second = (client_of(f"{URI}/{n}", monkeypatch)() for n in (1, 2))
    assert first is second
    assert first.meta.endpoint_url == "http://s3.local:8333"


def test_the_user_agent_names_us_without_a_search_of_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook reads the source of every frame for it: 0.07 s, twice in each try."""
    monkeypatch.setattr("inspect.stack", lambda: pytest.fail("the stack was searched"))
    client = client_of("s3://models/a", monkeypatch)()
    assert "Caller/RayTrain " in client.meta.config.user_agent


def test_a_client_whose_credentials_were_refused_is_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook keeps its credentials for ever, and a training outlives them."""
    one, other = client_of(URI, monkeypatch), client_of(URI, monkeypatch)
    old = one()
    assert other() is old
    new = one()
    assert new is not old
    assert other() is new, "the one that comes second needs no third"


def test_a_changed_connection_has_a_client_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotated key or a moved endpoint counts from the next store on."""
    old = client_of(URI, monkeypatch)()
    changed = {"conn_type": "aws", "login": "AKIA2", "password": "n3w", "extra": {"endpoint_url": "http://s3.new:1"}}
    monkeypatch.setenv("AIRFLOW_CONN_AWS_TEST", json.dumps(changed))
    new = client_of(URI, monkeypatch)()
    assert (old.meta.endpoint_url, new.meta.endpoint_url) == ("http://s3.local:8333", "http://s3.new:1")


def test_opening_reads_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_AWS_TEST")
    make = client_of(URI, monkeypatch)
    with pytest.raises(InvalidConfig, match="aws_test"):
        make()


def test_another_store_is_refused() -> None:
    with pytest.raises(InvalidConfig):
        open_experiment("gs://bucket/x", aws_conn_id=None)


def test_a_missing_aws_connection_is_named_and_not_taken_for_the_default_chain() -> None:
    """boto3's own chain would read and write with somebody else's identity."""
    store = open_experiment(URI, aws_conn_id="aws_gone")
    for ask in (
        lambda: store.read("owners/000001.json"),
        lambda: cluster_storage(StorageConfig(), uri=URI, aws_conn_id="aws_gone"),
    ):
        with pytest.raises(InvalidConfig, match="'aws_gone'") as caught:
            ask()
        assert "type aws" in caught.value.change


@pytest.mark.parametrize("conn_id", [None, "aws_default"])
def test_without_a_connection_boto3s_own_chain_is_meant(conn_id: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_AWS_DEFAULT", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert cluster_storage(StorageConfig(), uri=URI, aws_conn_id=conn_id).endpoint_url is None


@pytest.mark.parametrize("region", [None, "us-east-1"])
def test_an_endpoint_with_user_information_does_not_travel(monkeypatch: pytest.MonkeyPatch, region: str | None) -> None:
    """The spec lies on the cluster in clear, and in the job's page."""
    extra = {"endpoint_url": "http://key7:hunter2@s3.local:8333"}
    monkeypatch.setenv("AIRFLOW_CONN_AWS_TEST", json.dumps({"conn_type": "aws", "extra": extra}))
    with pytest.raises(InvalidConfig, match="storage_config") as caught:
        cluster_storage(StorageConfig(region=region), uri=URI, aws_conn_id="aws_test")
    assert "endpoint_url" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "key7" not in str(caught.value)
