"""A function of a DAG file trains on a cluster whose Python is not Airflow's.

Airflow runs the DAG with the interpreter beside OTHER_PYTHON_BIN, which has neither ray nor torch; the cluster has this one.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.core import layout
from airflow_provider.core.manifest import parse_manifest
from airflow_provider.storage.experiment_records import ExperimentRecords
from tests.stack.process import clean_env
from tests.stack.s3 import S3Server
from tests.stack.services import Stack
from tests.support.training_run import records_at

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).resolve().parents[2]
DAG_FILE = '''
from __future__ import annotations

import json
import os
import platform
import tempfile
from dataclasses import dataclass

from airflow.sdk import DAG, task

COMMON = {"storage_path": "s3://models/pythons", "scaling_config": {"num_workers": 1}, "poll_interval_s": 1}


@dataclass
class Progress:
    """Travels with the function, as do the imports that it uses."""

    epoch: int
    made_by: str


with DAG("other_python", schedule=None, catchup=False):

    @task.ray_train(**COMMON)
    def train(epochs: int, made_by: str) -> None:
        import ray.train

        for epoch in range(epochs):
            progress = Progress(epoch, made_by)
            with tempfile.TemporaryDirectory() as folder:
                with open(os.path.join(folder, "progress.json"), "w") as file:
                    json.dump(progress.__dict__, file)
                found = ray.train.Checkpoint.from_directory(folder)
                metrics = progress.__dict__ | {"python": platform.python_version()}
                ray.train.report(metrics, checkpoint=found)

    @task.ray_train(**COMMON)
    def too_new() -> None:
        type Count = int  # Python 3.12 has this, 3.11 has not

    train(epochs=2, made_by=platform.python_version())
    too_new()
'''


@pytest.fixture(scope="module")
def other() -> Path:
    """Where the other Python's programs are."""
    return Path(os.environ["OTHER_PYTHON_BIN"]).resolve()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory, other: Path) -> Iterator[S3Server]:
    """The bucket, after the other Python's Airflow has run the DAG on this Python's cluster."""
    folder = tmp_path_factory.mktemp("pythons")
    (folder / "dags").mkdir()
    (folder / "dags" / "other_python.py").write_text(textwrap.dedent(DAG_FILE))
    with Stack(folder / "stack", parts=("s3", "ray")) as stack:
        env = clean_env(
            folder / "home", {f"AIRFLOW_CONN_{k.upper()}": v for k, v in stack.airflow_connections().items()}
        )
        env |= {"AIRFLOW_HOME": str(folder / "airflow"), "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags")}
        env |= {"AIRFLOW__CORE__LOAD_EXAMPLES": "False", "PYTHONPATH": str(ROOT), "PATH": f"{other}:{env['PATH']}"}
        for arguments in (["db", "migrate"], ["dags", "test", "other_python"]):
            with (folder / "airflow.log").open("a") as log:
                subprocess.run(
                    [other / "airflow", *arguments], env=env, stdout=log, stderr=log, cwd=folder, check=False
                )
        print((folder / "airflow.log").read_text()[-20_000:])  # noqa: T201 - shown where a test fails
        yield stack.s3


def records_of(s3: S3Server, task_id: str) -> tuple[ExperimentRecords, dict[str, Any]]:
    """Records of the task's experiment, and the outcome of its only attempt."""
    keys = [info.key for info in records_at(s3, "s3://models/pythons").store.list("")]
    (owner,) = [key for key in keys if f"/{task_id}/" in key and "/owners/" in key]
    records = records_at(s3, f"s3://models/pythons/{owner.partition('/owners/')[0]}")
    found = records.store.read(layout.outcome(1, 1))
    assert found is not None
    return records, json.loads(found.body)


def version_of(other: Path) -> str:
    """The other Python's."""
    return subprocess.check_output(
        [other / "python", "-c", "import platform; print(platform.python_version())"], text=True
    ).strip()


def test_the_function_trains_on_the_clusters_python(s3: S3Server, other: Path) -> None:
    records, outcome = records_of(s3, "train")
    assert (outcome["state"], outcome["num_commits"]) == ("success", 2)
    found = records.store.read(layout.manifest(1, 1))
    assert found is not None
    metrics = [dict(entry.metrics) for entry in parse_manifest(found.body, key="manifest").entries]
    versions = {"made_by": version_of(other), "python": platform.python_version()}
    assert versions["made_by"].split(".")[:2] != versions["python"].split(".")[:2], "this proves nothing"
    assert [m | versions for m in metrics] == metrics
    assert [m["epoch"] for m in metrics] == [0, 1]


def test_what_the_clusters_python_cannot_read_says_both_versions_and_the_line(s3: S3Server, other: Path) -> None:
    _, outcome = records_of(s3, "too_new")
    assert (outcome["state"], outcome["failure"]["kind"]) == ("failed", "config")
    reason = outcome["failure"]["reason"]
    short = [".".join(version.split(".")[:2]) for version in (version_of(other), platform.python_version())]
    assert [word for word in (*short, "line") if word not in reason] == [], reason
