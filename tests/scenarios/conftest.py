"""What the scenarios stand on: an operator's surroundings, and an experiment in a bucket of each kind."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from airflow_provider.core import layout
from airflow_provider.core.records import RestoredRecord
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.storage.object_store import ObjectStore
from tests.support.case_files import objects
from tests.support.experiment import NOW, claim, owner
from tests.support.fake_jobs_client import SESSION, job
from tests.support.memory_store import MemoryStore
from tests.support.operator_run import World, running_world
from tests.support.training_try import URI, Bench, job_id

if TYPE_CHECKING:
    from tests.stack.s3 import S3Server


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A task instance with a fake Jobs API over HTTP and a bucket in memory."""
    with running_world(monkeypatch) as world:
        yield world


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server; imported here, since a machine without one may run the other scenarios."""
    from tests.stack.s3 import S3Server

    with S3Server(tmp_path_factory.mktemp("s3"), buckets=["models"]) as server:
        yield server


@dataclass
class Experiment:
    """An experiment in some store whose first attempt failed, and the second try of its task."""

    store: ObjectStore
    put_raw: Callable[[str, bytes], None]
    bench: Bench

    @property
    def records(self) -> ExperimentRecords:
        """Its records."""
        return ExperimentRecords(self.store)

    def written(self) -> list[str]:
        """All keys."""
        return [info.key for info in self.store.list("")]

    def left_by_plain_ray(self, case: str, run: str) -> None:
        """Attempt 1 trained without fencing, so its run directory is as plain Ray leaves it: the case's own files."""
        self.store.write(layout.owner(1), owner(1).body())
        self.store.write(layout.claim(1, 1), claim(1, 1, session_name=SESSION, submission_id=job_id(1, 1)).body())
        restored = RestoredRecord(checkpoint=None, reason="first attempt", fenced=False, created_at=NOW)
        self.store.write(layout.restored(1, 1), restored.body())
        for key, body in objects(case, run).items():
            self.put_raw(f"{layout.generation(1)}/{key}", body)
        self.bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "FAILED")


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.s3)])
def experiment(request: pytest.FixtureRequest) -> Experiment:
    """Empty. On both kinds of store: the real one has the last word on keys and listings."""
    if request.param == "memory":
        memory = MemoryStore(URI)
        return Experiment(memory, memory.put_raw, Bench())
    from airflow_provider.storage.s3 import S3ObjectStore

    server = request.getfixturevalue("s3")
    client, prefix = server.client(), f"{uuid.uuid4().hex}/experiment"
    store = S3ObjectStore(f"s3://models/{prefix}", client_factory=server.client)
    return Experiment(
        store, lambda key, body: client.put_object(Bucket="models", Key=f"{prefix}/{key}", Body=body), Bench()
    )
