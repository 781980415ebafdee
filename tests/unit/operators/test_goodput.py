"""Goodput where people look for it: the task's result, a failed try's XCom, the end of the log, Airflow's metrics."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk._shared.observability.metrics import stats as stats_of_tasks
from airflow.sdk.execution_time import task_runner
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils

from airflow_provider.core.errors import RayJobFailed
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.goodput import Cause
from airflow_provider.operators import goodput_metrics
from airflow_provider.testing.cluster import RayTrainCluster
from airflow_provider.testing.outcomes import DriverLost, FailsWith, NeverEnds, Succeeds, Unreachable
from tests.support.operator_run import World, running_world
from tests.support.statsd_server import StatsdServer, client_module
from tests.unit.testing.test_test_mode import operator

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "goodput.md").read_text()
PREFIX = "airflow"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with running_world(monkeypatch) as world:
        yield world


@pytest.fixture
def statsd(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatsdServer]:
    """Metrics set up as Airflow's task runner does at its start, from the configuration."""
    with StatsdServer() as server:
        monkeypatch.setitem(sys.modules, "statsd", client_module())
        for key, value in {"STATSD_ON": "True", "STATSD_HOST": "127.0.0.1", "STATSD_PORT": str(server.port)}.items():
            monkeypatch.setenv(f"AIRFLOW__METRICS__{key}", value)
        before = stats_of_tasks._factory, stats_of_tasks._export_legacy_names
        stats_of_tasks.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
        yield server
        stats_of_tasks._factory, stats_of_tasks._export_legacy_names = before
        stats_of_tasks._backend = None


def seconds(received: dict[str, str]) -> dict[str, int]:
    """Our counters, by their names behind the prefix."""
    prefix = f"{PREFIX}.ray_train."
    counters = {name: value for name, value in received.items() if name.startswith(prefix) and value.endswith("|c")}
    return {name.removeprefix(prefix): int(value.removesuffix("|c")) for name, value in counters.items()}


def test_the_metrics_are_those_that_airflow_sets_up_in_a_task() -> None:
    """Airflow has several copies of this module; only one is initialized where a task runs."""
    assert task_runner.stats is stats_of_tasks
    assert (stats.gauge, stats.incr) == (stats_of_tasks.gauge, stats_of_tasks.incr)


def test_a_try_sends_its_share_when_it_is_collected(ray_train_cluster: RayTrainCluster, statsd: StatsdServer) -> None:
    """To the server that Airflow's own metrics of the task go to."""
    run = ray_train_cluster.run(operator(timeout_s=7_200), outcomes=[NeverEnds({"epoch": 0})])
    spent = run.tries[0].xcoms["ray_train_failure"]["goodput"]
    received = statsd.received()
    assert f"{PREFIX}.ti.finish" in received
    assert received[f"{PREFIX}.ray_train.goodput"] == f"{spent['fraction']}|g"
    expected = {"wall_seconds": spent["wall_s"], "productive_seconds": spent["productive_s"]}
    expected |= {f"lost_seconds.{cause}": lost for cause, lost in spent["lost_s"].items()}
    assert seconds(received) == {name: pytest.approx(value, abs=0.6) for name, value in expected.items()}
    assert seconds(received)["lost_seconds.rework"] > 7_000


def test_shares_of_failed_and_attaching_tries_add_up(ray_train_cluster: RayTrainCluster, statsd: StatsdServer) -> None:
    """The first fails and is collected; the second loses sight of its job, which the third attaches to and collects."""
    outcomes = [
        FailsWith(FailureKind.PREEMPTION, {"epoch": 0}),
        Unreachable({"epoch": 1}, then=Succeeds({"epoch": 2})),
    ]
    run = ray_train_cluster.run(operator(), outcomes=outcomes)
    assert [one.state for one in run.tries] == ["up_for_retry", "up_for_retry", "success"], run.error
    result = run.return_value["goodput"]
    failure = run.tries[0].xcoms["ray_train_failure"]["goodput"]
    received = seconds(statsd.received())
    assert received["wall_seconds"] + failure["wall_s"] == pytest.approx(result["wall_s"], abs=2)
    assert received["wall_seconds"] > 1_000, "the time in which nobody could reach the cluster is the second try's"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seconds of each try that was counted."""
    found: list[int] = []

    def incr(name: str, count: int = 1, **_: Any) -> None:
        if name == goodput_metrics.WALL:
            found.append(count)

    monkeypatch.setattr(stats, "incr", incr)
    return found


@pytest.mark.parametrize("is_refused", [False, True])
def test_what_was_counted_is_not_counted_by_whoever_collects_it_again(
    world: World, sent: list[int], is_refused: bool
) -> None:
    """The same event again, and a stale scheduler event that makes another try."""
    world.task.ti.max_tries = 3
    trigger = world.defer()
    began = world.records.owner(1)
    assert began is not None
    earlier = began.record.model_copy(update={"created_at": began.record.created_at - timedelta(seconds=500)})
    world.records.update_owner(earlier, etag=began.etag)
    world.succeed(trigger, num_checkpoints=0 if is_refused else 1)
    with pytest.raises(RayJobFailed) if is_refused else nullcontext():
        world.resume(trigger, operator=world.operator(require_new_checkpoint=True))
    assert [seconds > 400 for seconds in sent] == [True]
    with pytest.raises(RayJobFailed) if is_refused else nullcontext():
        world.resume(trigger)
    world.next_try()
    with pytest.raises(RayJobFailed) if is_refused else nullcontext():
        world.operator().execute(world.task.context)
    assert sum(sent[1:]) == 0


def test_a_job_that_trains_on_is_counted_by_the_try_that_collects_it(
    world: World, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given up and could not be stopped; the next try attaches."""
    trigger = world.defer()
    world.server.set_status(trigger.submission_id, "RUNNING")
    monkeypatch.setattr("airflow_provider.operators.training_try.STOP_WAIT_S", 0.0)
    with pytest.raises(RayJobFailed):
        world.resume(trigger, "silent_driver")
    assert sent == []


def test_metrics_that_break_harm_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("no such host")

    monkeypatch.setattr(stats, "gauge", broken)
    trigger = world.defer()
    world.succeed(trigger)
    assert world.resume(trigger)["state"] == "success"


def test_a_failed_try_says_it_too(ray_train_cluster: RayTrainCluster) -> None:
    outcomes = [DriverLost({"epoch": 0}), Succeeds({"epoch": 1})]
    run = ray_train_cluster.run(operator(), outcomes=outcomes)
    spent = run.tries[0].xcoms["ray_train_failure"]["goodput"]
    assert set(spent) == set(run.return_value["goodput"]) == {"fraction", "wall_s", "productive_s", "lost_s"}
    assert set(spent["lost_s"]) == {cause.value for cause in Cause}
    assert run.return_value["goodput"]["wall_s"] >= spent["wall_s"]


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Of the task's log, which goes to stdout outside a worker."""
    return [line for line in capsys.readouterr().out.splitlines() if line.strip()][-1]


def test_the_log_ends_with_it(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    trigger = world.defer()
    world.succeed(trigger)
    world.resume(trigger)
    assert re.search(r"\bgoodput \d+% of .*: .* productive; lost: ", last_line(capsys))


def test_the_log_of_a_failed_try_ends_with_it(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    trigger = world.defer()
    world.server.set_status(trigger.submission_id, "FAILED", exit_code=1)
    with pytest.raises(RayJobFailed):
        world.resume(trigger)
    assert re.search(r"\bgoodput \d+% of .*: .* productive; lost: ", last_line(capsys))


def test_the_page_names_each_metric_and_each_cause() -> None:
    for name in (goodput_metrics.GOODPUT, goodput_metrics.WALL, goodput_metrics.PRODUCTIVE):
        assert f"| `{name}` |" in PAGE
    for cause in Cause:
        assert f"| `{cause.value}` |" in PAGE
        assert f"`{goodput_metrics.LOST}.{cause.value}`" in PAGE
