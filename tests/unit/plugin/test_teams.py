"""An Airflow with several teams: the page reads through the connections that the DAG's own tasks see, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import insert
from sqlalchemy.orm import Session

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.hooks.s3_clients import SharedS3Client, s3_hook
from airflow_provider.plugin import snapshots
from tests.support.lineage_page import JOB, KEY, Tables
from tests.unit.plugin.conftest import Bucket

QUERY: dict[str, Any] = {"dag_id": "of_blue", "run_id": KEY.run_id, "task_id": "train"}


@pytest.fixture
def teams(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> Tables:
    """Teams blue and red, each with a connection of its own; the DAG is blue's."""
    from airflow.models.connection import Connection
    from airflow.models.dag import DagModel, _team_name_cache
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.team import Team, dag_bundle_team_association_table

    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    _team_name_cache.clear()
    with Session(tables.engine) as session:
        session.add_all([Team(name="blue"), Team(name="red"), DagBundleModel(name="of_blue")])
        session.flush()
        link = {"dag_bundle_name": "of_blue", "team_name": "blue"}
        session.execute(insert(dag_bundle_team_association_table).values(**link))
        session.add(DagModel(dag_id="of_blue", bundle_name="of_blue", fileloc="d.py"))
        for name in ("blue", "red"):
            session.add(
                Connection(f"aws_{name}", conn_type="aws", login=f"key-of-{name}", password="x", team_name=name)
            )
        session.commit()
    return tables


@pytest.mark.usefixtures("teams")
def test_a_teams_connection_is_there_for_its_own_team_alone() -> None:
    assert s3_hook("aws_blue", team_name="blue").conn_config.login == "key-of-blue"
    assert SharedS3Client("aws_blue", team_name="blue")() is not None
    for conn_id, team_name in (("aws_blue", "red"), ("aws_red", "blue"), ("aws_blue", None)):
        with pytest.raises(InvalidConfig):
            s3_hook(conn_id, team_name=team_name)


def test_the_page_asks_for_its_dags_team_whatever_a_record_says(
    client: TestClient,
    teams: Tables,
    bucket: Bucket,
    token: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = TaskInstanceKey("of_blue", KEY.run_id, "train")
    teams.add_task(key)
    teams.keep(key, JOB | {"aws_conn_id": "aws_blue", "team_name": "red"})
    client.cookies.set("_token", token("reader of of_blue"))
    client.get("/lineage", params=QUERY | {"team_name": "red"})
    (asked,) = bucket.asked
    assert (asked.aws_conn_id, asked.team_name) == ("aws_blue", "blue")
    opened: list[dict[str, Any]] = []

    def client_of(conn_id: str, **more: Any) -> Callable[[], None]:
        opened.append({"id": conn_id, **more})
        return lambda: None

    monkeypatch.setattr("airflow_provider.hooks.experiment.SharedS3Client", client_of)
    snapshots.open_reader(asked)
    assert (opened[0]["id"], opened[0]["team_name"]) == ("aws_blue", "blue")


def test_without_teams_nobody_asks_for_one(reader: TestClient, bucket: Bucket) -> None:
    assert reader.get("/lineage", params=QUERY | {"dag_id": "d"}).status_code == 200
    assert [one.team_name for one in bucket.asked] == [None]
