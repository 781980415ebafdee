"""What benchmarks 5 and 6 put into a triggerer: ours, the floor and the peer, and how each is run."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import MeasurementFailed, run_python
from benchmarks.options import ROOT
from benchmarks.peers import ASTRO, OURS, Installed, Peer, install

CODE = "import sys; sys.argv = ['', plan]; from benchmarks.triggerer_process import main; main()"


@dataclass(frozen=True)
class Side:
    """Which trigger runs, and in which environment."""

    name: str
    title: str
    peer: Peer
    classpath: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the usual arguments."""

    def kwargs(self, url: str, poll_s: float) -> dict[str, Any]:
        """Arguments of the trigger."""
        usual: dict[str, Any]
        if self.peer is ASTRO:
            usual = {
                "job_id": "{id}",
                "conn_id": "ray_astro",
                "xcom_dashboard_url": url,
                "ray_cluster_yaml": None,
                "gpu_device_plugin_yaml": "",
                "poll_interval": poll_s,
                "fetch_logs": True,
            }
        elif "floor" in self.classpath:
            usual = {"url": url, "submission_id": "{id}", "poll_interval_s": poll_s}
        else:
            usual = {
                "conn_id": "ray_ours",
                "aws_conn_id": "bucket",
                "experiment_uri": "s3://bucket/{id}",
                "generation": 1,
                "attempt": 1,
                "k": 1,
                "submission_id": "{id}",
                "session_name": "session_1",
                "deadline": None,
                "limits": {"poll_interval_s": poll_s},
            }
        return usual | dict(self.options)


OUR_TRIGGER = "airflow_provider.triggers.ray_train.RayTrainTrigger"
FLOOR = Side("floor", "a trigger that sleeps and GETs the job", OURS, "benchmarks.floor_trigger.FloorTrigger")
FLOOR_LOG = Side("floor", "a trigger that reads the websocket once", OURS, "benchmarks.floor_trigger.FloorLogTrigger")
QUIET = Side("ours_no_log", "RayTrainTrigger, stream_logs=False", OURS, OUR_TRIGGER, {"stream_logs": False})
FULL = Side("ours", "RayTrainTrigger", OURS, OUR_TRIGGER)
PEER = Side("astro", "astro-provider-ray 0.4.0, RayJobTrigger", ASTRO, "ray_provider.triggers.RayJobTrigger")


def connections(url: str) -> dict[str, dict[str, Any]]:
    """What Airflow would know."""
    bucket = {"endpoint_url": url, "region_name": "us-east-1"}
    return {
        "ray_ours": {"conn_type": "ray", "host": url},
        "bucket": {"conn_type": "aws", "login": "key", "password": "secret", "extra": json.dumps(bucket)},
    }


@contextmanager
def airflow_home() -> Iterator[dict[str, str]]:
    """The environment of a triggerer with a new home that goes away."""
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        yield {
            "AIRFLOW_HOME": home,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(os.urandom(32)).decode(),
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(Path(home) / "logs"),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/none.db",
            "NO_PROXY": "127.0.0.1,localhost",
            # The stand-in asks nobody for a token; with Ray's default, or the caller's, the peer's client looks for one.
            "RAY_AUTH_MODE": "disabled",
            "PYTHONPATH": str(ROOT),
        }


def in_triggerer(
    side: Side, url: str, *, env: Mapping[str, str], poll_s: float, timeout_s: float, **plan: Any
) -> dict[str, Any]:
    """Run one side to its end; its figures. Raises MeasurementFailed."""
    whole = {
        "url": url,
        "classpath": side.classpath,
        "kwargs": side.kwargs(url, poll_s),
        "connections": connections(url),
    }
    code = f"plan = {json.dumps(whole | plan)!r}\n{CODE}"
    # The peer asks for its connection in tasks that it makes itself, where Airflow 3.3.2's triggerer doesn't answer a blocking question:
    # it finds one in the environment only.
    known = {"AIRFLOW_CONN_RAY_ASTRO": json.dumps({"conn_type": "ray", "extra": {"address": url}})}
    return run_python(python_of(side), code, env={**env, **known}, timeout_s=timeout_s)


def python_of(side: Side) -> Path:
    """The interpreter of a side's environment. Raises MeasurementFailed."""
    found: Installed = install(side.peer)
    if found.problem:
        raise MeasurementFailed(found.problem)
    return found.python
