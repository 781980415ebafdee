"""Scale and long runs: many tasks on one triggerer, many checkpoints, and every fault at once."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider.client.jobs_client import SyncJobsClient
from airflow_provider.core.errors import RayJobFailed, RayTrainError
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.identity import TaskInstanceKey, experiment_uri
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.core.waiting import WaitLimits, pause_s
from airflow_provider.operators import session as session_module
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.storage.restore_scan import scan_restore_point
from airflow_provider.testing.jobs_api_parts import FakeJob, Fault, cut
from airflow_provider.triggers.ray_train import RayTrainTrigger
from tests.support.counting_store import CountingStore
from tests.support.decisions import is_retried
from tests.support.experiment import ref
from tests.support.fake_airflow import FakeTask, FakeTaskInstance
from tests.support.jobs_clients import QUICK
from tests.support.memory_store import MemoryStore
from tests.support.operator_run import STORAGE, DriverServer, World
from tests.support.records import outcome
from tests.support.training_try import Bench

# Hundreds of tasks are a minute's work on a busy machine.
pytestmark = pytest.mark.timeout(300)
NUM_TASKS = 300


@pytest.mark.scenario("C93")
def test_polls_that_began_together_spread_out() -> None:
    """A restarted triggerer starts all its jobs at once; the dashboard must not get all their polls at once for ever."""
    chance, limits = random.Random(93), WaitLimits(poll_interval_s=30)
    times = [[0.0] for _ in range(NUM_TASKS)]
    for polls in times:
        while polls[-1] < 3_600:
            polls.append(polls[-1] + pause_s(limits, chance.random()))
    last_half_hour = [at for polls in times for at in polls if 1_800 <= at < 3_600]
    assert len(last_half_hour) <= 1.02 * NUM_TASKS / 30 * 1_800
    busiest = Counter(int(at) for at in last_half_hour).most_common(1)[0][1]
    assert busiest < 40, "the mean is 10; without jitter it is 300"


class SlowServer(DriverServer):
    """Answers questions about jobs 200 ms late."""

    async def _get_job(self, request: web.Request, job: FakeJob) -> web.Response:
        await asyncio.sleep(0.2)
        return await super()._get_job(request, job)


def trigger_of(job_id: str, *, poll_interval_s: float) -> RayTrainTrigger:
    """A deferred task that follows this job."""
    return RayTrainTrigger(
        conn_id="ray_test",
        aws_conn_id=None,
        experiment_uri=f"{STORAGE}/x",
        generation=1,
        attempt=1,
        k=1,
        submission_id=job_id,
        session_name="session_fake_1",
        deadline=None,
        limits=WaitLimits(poll_interval_s=poll_interval_s).model_dump(),
        stream_logs=False,
    )


@contextmanager
def no_blocking_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What this thread did that holds up a loop: sleeps, and talk over sockets that wait. Not a matter of time or load."""
    found: list[str] = []
    me = threading.current_thread()

    def watched(name: str, call: Any) -> Any:
        def watch(*arguments: Any) -> Any:
            is_waiting = not isinstance(arguments[0], socket.socket) or arguments[0].gettimeout() != 0
            if threading.current_thread() is me and is_waiting:
                found.append(name)
            return call(*arguments)

        return watch

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", watched("sleep", time.sleep))
        for name in ("connect", "recv", "send", "sendall"):
            patch.setattr(socket.socket, name, watched(name, getattr(socket.socket, name)))
        yield found


@pytest.mark.scenario("C93")
def test_300_deferred_tasks_on_one_loop_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow dashboard that hangs for one of them: nothing blocks the loop, each end is seen by the next poll."""
    ended: list[str] = []
    after: Counter[str] = Counter()
    monkeypatch.setattr("airflow_provider.triggers.ray_train.open_experiment", lambda *_, **__: MemoryStore())

    async def follow(number: int) -> None:
        async for event in trigger_of(f"job-{number}", poll_interval_s=1.0).run():
            ended.append(event.payload["end"])  # noqa: PERF401 - one of many at once

    async def triggerer(server: SlowServer) -> bool:
        hanging = asyncio.create_task(follow(0))
        others = [asyncio.create_task(follow(number)) for number in range(1, NUM_TASKS)]
        while server.num("GET", ".*/api/jobs/.*") < 1.5 * NUM_TASKS:  # noqa: ASYNC110 - looks from outside
            await asyncio.sleep(0.05)
        for number in range(1, NUM_TASKS):
            server.set_status(f"job-{number}", "SUCCEEDED")
        num_before = len(server.requests)
        await asyncio.gather(*others)
        after.update(request.path for request in server.requests[num_before:])
        was_hanging = not hanging.done()
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        return was_hanging

    with SlowServer() as server:
        monkeypatch.setenv("AIRFLOW_CONN_RAY_TEST", json.dumps({"conn_type": "ray", "host": server.url}))
        hang = server.add(Fault("hang", path=".*/job-0"))
        for number in range(NUM_TASKS):
            server.add_job(f"job-{number}")
        with no_blocking_calls(monkeypatch) as blocking:
            assert asyncio.run(triggerer(server))
    assert hang.num_hit > 0
    assert ended == ["ended"] * (NUM_TASKS - 1)
    assert blocking == []
    assert max(count for path, count in after.items() if not path.endswith("/job-0")) == 1


@pytest.mark.scenario("C95")
def test_finding_the_restore_point_among_12_000_checkpoints_takes_four_calls() -> None:
    """480,000 objects: the manifest names the latest, and only that one is listed. A try has read the newest attempt before."""
    bench = Bench()
    bench.claim(1)
    names = bench.commit(*(f"checkpoint_{n:06d}" for n in range(12_000)))
    for name in names:
        for number in range(39):
            bench.store._objects[f"g000001/{name}/shard_{number:02d}"] = bench.store._objects[
                f"g000001/{name}/model.pt"
            ]
    store = CountingStore(bench.store)
    records = ExperimentRecords(store)
    newest = records.read_attempt(ref(1, 1))
    read_before = store.num_calls
    point = scan_restore_point(records, ref=ref(1, 2), policy=RestorePolicy(), newest=newest)
    assert point is not None
    assert point.candidate is not None
    assert point.candidate.name == names[-1]
    assert read_before <= 6, store.log
    assert store.num_calls - read_before <= 4, store.log


# --- every fault at once -----------------------------------------------------------------------------------------------

NUM_RUNS = 50


class ChaosServer(DriverServer):
    """Drops every tenth reply to a submit after accepting it, answers 5 % of all with a 502; jobs end by themselves."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.accepted = self.dropped = self.failed = 0
        self.num_seen: Counter[str] = Counter()
        self.end_job: dict[str, Any] = {}

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.chance.random() < 0.05:
            self.failed += 1
            return web.Response(status=502, text="<html>502 Bad Gateway</html>", content_type="text/html")
        answer = await super()._middleware(request, handler)
        if request.method == "POST" and request.path.endswith("/api/jobs/"):
            self.accepted += 1
            if self.accepted % 10 == 3:
                self.dropped += 1
                cut(request)
        return answer

    async def _get_job(self, request: web.Request, job: FakeJob) -> web.Response:
        name = job.request["submission_id"]
        self.num_seen[name] += 1
        if job.status == "PENDING":
            job.status = "RUNNING"
        elif self.num_seen[name] == 12:
            self.end_job[job.request["metadata"]["experiment"]](job)
        return await super()._get_job(request, job)


@dataclass
class LogicalRun:
    """One task through all its tries; every fifth training has a bug."""

    world: World
    has_bug: bool
    row: dict[str, Any] | None = None
    event: dict[str, Any] | None = None
    result: Any = None
    tries: int = 1
    seen: list[str] = field(default_factory=list)

    def end_job(self, job: FakeJob) -> None:
        """What the driver leaves when its training ends."""
        names = self.world.bench.commit("checkpoint_0")
        failure = Failure(kind=FailureKind.USER, reason="KeyError: 'labels'")
        bad, good = partial(outcome, "failed", failure=failure), partial(outcome, latest_checkpoint=names[-1])
        self.world.end(job, "FAILED" if self.has_bug else "SUCCEEDED", record=(bad if self.has_bug else good)())

    def work(self, *, is_killed: bool = False) -> None:
        """A worker's turn: start a try, or resume one; it may be killed after its POST, or fail and be retried."""
        operator = self.world.operator()
        try:
            if self.event is None:
                self.result = operator.execute(self.world.task.context)
            else:
                event, self.event = self.event, None
                self.result = operator.execute_complete(self.world.task.context, event)
        except TaskDeferred as deferred:
            self.row = deferred.trigger.serialize()[1]
        except RayTrainError as error:
            self.seen.append(type(error).__name__)
            if not is_retried(error):
                self.result = error
                return
            self.retry()
        if is_killed and self.row is not None:
            self.row = None  # the process died before Airflow heard that it defers
            self.retry()

    def retry(self) -> None:
        """Airflow starts the next try."""
        self.tries += 1
        assert self.tries < 10
        self.world.next_try()
        self.work()


async def triggerer(runs: list[LogicalRun], *, lives_s: float | None) -> None:
    """Follow all deferred runs; with `lives_s` it is restarted after that time and fires nothing more."""

    async def follow(run: LogicalRun) -> None:
        async for event in RayTrainTrigger(**json.loads(json.dumps(run.row))).run():
            run.row, run.event = None, json.loads(json.dumps(event.payload))

    tasks = [asyncio.create_task(follow(run)) for run in runs if run.row is not None]
    if not tasks:
        return
    _, left = await asyncio.wait(tasks, timeout=lives_s)
    for task in left:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def chaos(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ChaosServer, list[LogicalRun]]]:
    """Fifty task instances, each with a bucket's prefix of its own, on one cluster."""
    stores: dict[str, MemoryStore] = {}
    for module in ("operators.session", "triggers.ray_train"):
        monkeypatch.setattr(f"airflow_provider.{module}.open_experiment", lambda uri, **_: stores[uri])
    monkeypatch.setattr(
        session_module, "_client", lambda t: SyncJobsClient(t[0], credentials=t[1], submit_limits=QUICK)
    )
    with ChaosServer(random.Random(100)) as server:
        monkeypatch.setenv("AIRFLOW_CONN_RAY_TEST", json.dumps({"conn_type": "ray", "host": server.url}))
        runs = []
        for number in range(NUM_RUNS):
            task = FakeTask(FakeTaskInstance(run_id=f"run-{number}", max_tries=9))
            uri = experiment_uri(STORAGE, TaskInstanceKey(task.ti.dag_id, task.ti.run_id, task.ti.task_id))
            stores[uri] = MemoryStore(uri)
            run = LogicalRun(World(server, Bench(stores[uri]), task), has_bug=number % 5 == 0)
            server.end_job[uri] = run.end_job
            runs.append(run)
        yield server, runs


@pytest.mark.scenario("C100")
def test_fifty_runs_through_every_fault_are_fifty_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost replies, 502 pages, two triggerer restarts, killed workers: no job twice, and no verdict but the job's own."""
    with chaos(monkeypatch) as (server, runs):
        for number, run in enumerate(runs):
            run.work(is_killed=number % 7 == 0)
        for lives_s in (0.05, 0.05, *[None] * 10):
            asyncio.run(triggerer(runs, lives_s=lives_s))
            for run in runs:
                if run.event is not None:
                    run.work()
            if all(run.result is not None for run in runs):
                break
        jobs = Counter(job.request["metadata"]["experiment"] for job in server.jobs.values())
        assert len(jobs) == NUM_RUNS
        assert set(jobs.values()) == {1}
        assert server.dropped >= 5
        assert server.failed >= 20
        assert sum(run.tries > 1 for run in runs) >= NUM_RUNS // 7
        for run in runs:
            if run.has_bug:
                assert isinstance(run.result, RayJobFailed)
                assert run.result.failure.kind is FailureKind.USER
            else:
                assert run.result["state"] == "success"
