"""All of it together: the product's code between a bucket, a cluster and an Airflow in memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.client.values import JobRequest
from airflow_provider.core.errors import RayTrainError, RecordUnreadable
from airflow_provider.core.identity import experiment_uri
from airflow_provider.core.job import EXIT_FAILED
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.hooks import final_stop, job_package
from airflow_provider.operators import killing, session, training_try
from airflow_provider.operators.ray_train import RayTrainOperator
from airflow_provider.operators.training_try import TrainingTry
from airflow_provider.runtime import driver as driver_module
from airflow_provider.runtime import fit_loop, restoring, speech, storage
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.triggers import ray_train as trigger_module
from airflow_provider.triggers import waiter
from airflow_provider.triggers.waiter import Following, JobWaiter
from tests.support.fake_airflow import refused
from tests.support.operator_run import STORAGE
from tests.unit.machine import drivers
from tests.unit.machine.airflow import KEY, Airflow, TryRun, driven
from tests.unit.machine.drivers import DriverProcess, Left
from tests.unit.machine.processes import Call, Killed, Process, Scheduler
from tests.unit.machine.surroundings import (
    AWS_KEY,
    AsyncCluster,
    Bucket,
    Clocks,
    Cluster,
    DriverStore,
    SerialPool,
    hook_of,
)
from tests.unit.machine.truth import TIMEOUT_S, Rank, Truth


class World:
    """One task instance's surroundings, from its first try to the end."""

    def __init__(self, *, deferrable: bool, lags: bool) -> None:
        self.deferrable, self.lags = deferrable, lags
        self.folder = tempfile.mkdtemp(prefix="machine-")
        self.clocks = Clocks()
        self.scheduler = Scheduler()
        self.truth = Truth(self)
        self.bucket = Bucket(experiment_uri(STORAGE, KEY), self)
        self.cluster = Cluster(self)
        self.airflow = Airflow(self)
        self.records = ExperimentRecords(self.bucket)
        self.processes: list[Process] = []
        self.drivers: list[DriverProcess] = []
        self.torn: dict[str, bytes] = {}
        """Damaged records by key, as they were."""
        self.before_claim: dict[Rank, dict[str, Any]] = {}
        self.has_outside_stop = False
        self.patches = pytest.MonkeyPatch()
        self._patch()

    def close(self) -> None:
        for process in self.processes:
            with suppress(Killed, Left):
                process.kill()
        self.patches.undo()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- processes ---------------------------------------------------------------------------------------------------

    def spawn(
        self, name: str, target: Callable[[], Any], *, about: Any, is_gone: Callable[[], bool] = lambda: False
    ) -> Process:
        process = Process(self.scheduler, name, target, is_gone=is_gone, about=about)
        self.processes.append(process)
        return process

    def go(self, process: Process, until: str = "end") -> None:
        process.run(until)
        self.settle_ends()

    def order(self, process: Process, order: str) -> None:
        process.resume(order)
        self.settle_ends()

    def settle_ends(self) -> None:
        """What follows from processes that are over."""
        for driver in self.drivers:
            if driver.threads and driver.status == "RUNNING":
                self._settle_driver(driver)
        over = [p for p in self.processes if p.is_over]
        self.processes = [p for p in self.processes if not p.is_over]
        for process in over:
            self._settle(process)

    def _settle(self, process: Process) -> None:
        run = process.about
        if "listener" in process.seen and isinstance(process.error, RayTrainError):
            # It could not read the bucket, or reach the cluster, and gives up.
            process.seen["listener"].is_marked = False
        elif isinstance(run, TryRun):
            if "on_kill" in process.name:
                if isinstance(process.error, Exception):
                    self.truth.broken(f"{process.name} raises {process.error!r}")
            elif "trigger" in process.seen:
                self.airflow.fired(process, run)
            else:
                self.airflow.ended(process, run)

    def _settle_driver(self, driver: DriverProcess) -> None:
        main = driver.main
        if main.is_over and not driver.is_over:
            if isinstance(main.error, Exception):
                self.truth.broken(f"{driver.name} ends with {main.error!r}")
            driver.leaves(main.result if isinstance(main.result, int) else EXIT_FAILED)
        if driver.is_over:
            driver.end()
            self._end_job(driver)

    def _end_job(self, driver: DriverProcess) -> None:
        driver.status = "STOPPED" if driver.is_stop_asked else "SUCCEEDED" if driver.code == 0 else "FAILED"
        if self.visible_driver(driver.spec.ref.rank) is driver:
            said = f"Job exited; aws_access_key_id={AWS_KEY} aws_secret_access_key={AWS_KEY}{AWS_KEY}"
            self.cluster.set_status(driver.job_id, driver.status, driver_exit_code=driver.code, message=said)

    def sleep(self, seconds: float) -> None:
        """Any process's pause: time passes when somebody lets it go on."""

        def passed() -> None:
            self.clocks.passed_s += seconds

        self.scheduler.call(Call("", "sleep"), passed)

    # --- cluster -----------------------------------------------------------------------------------------------------

    def start_driver(self, request: JobRequest, spec: JobSpec) -> None:
        assert request.submission_id == spec.submission_id
        self.drivers.append(DriverProcess(self, spec, len(self.drivers) + 1, self.lags))

    def place(self, driver: DriverProcess) -> None:
        """A node takes the job."""
        driver.started_at = self.truth.now
        driver.start()
        if self.visible_driver(driver.spec.ref.rank) is driver:
            self.cluster.set_status(driver.job_id, "RUNNING")

    def crash(self, driver: DriverProcess) -> None:
        driver.crash()
        self.settle_ends()

    def visible_driver(self, rank: Rank | None) -> DriverProcess | None:
        """The driver whose job the present cluster knows."""
        found = [d for d in self.drivers if d.spec.ref.rank == rank and not d.is_unseen]
        return found[-1] if found and found[-1].job_id in self.cluster.jobs else None

    def stop_job(self, submission_id: str) -> None:
        for driver in self.drivers:
            if driver.job_id == submission_id and not driver.is_unseen and driver.status == "RUNNING":
                driver.is_stop_asked = True
                driver.terminate()

    def driver_of(self, job_id: str, run_uid: str) -> DriverProcess:
        (found,) = [d for d in self.drivers if d.driver is not None and d.driver.run_uid == run_uid]
        assert found.job_id == job_id
        return found

    def replace_cluster(self, *, survives: bool) -> None:
        """A new head behind the address. Where only the address moved, running drivers live on, unseen."""
        for driver in self.drivers:
            driver.is_unseen = True
            if driver.is_live and (driver.status == "PENDING" or not survives):
                driver.is_over = True
                driver.end()
                driver.status = "FAILED"
        self.cluster.replace()
        self.settle_ends()

    # --- the product in here -----------------------------------------------------------------------------------------

    def operator(self) -> RayTrainOperator:
        return RayTrainOperator(
            task_id="train",
            storage_path=STORAGE,
            conn_id="ray",
            train_loop="pkg.mod:loop",
            checkpoint_config={"num_to_keep": drivers.KEEP},
            progress_metric="epoch",
            timeout_s=TIMEOUT_S,
            stream_logs=False,
            deferrable=self.deferrable,
        )

    def try_again(self, *args: Any, **fields: Any) -> TrainingTry:
        return TrainingTry(*args, **fields, now=self.clocks.airflow, sleep=self.sleep)

    async def read_task_state(self, _: object) -> str:
        """What Airflow tells a trigger of its task."""
        return self.scheduler.call(Call("airflow", "state"), lambda: self.airflow.state, *[lambda: refused(500)] * 2)

    def wait_in_worker(self, following: Following, *, conn_id: str, records: Any, log: Any, **_: Any) -> Any:
        async def open_client() -> AsyncCluster:
            return AsyncCluster(self.cluster)

        self.truth.waits("a worker", following.ref, following.deadline)
        opened: Any = open_client
        return driven(JobWaiter(following, open_client=opened, records=records, say=log.info).wait())

    def _patch(self) -> None:
        put = self.patches.setattr
        hook = hook_of(self.cluster)
        for module in (session, trigger_module, final_stop):
            put(module, "open_experiment", lambda *_, **__: self.bucket)
            put(module, "RayHook", hook)
        put(session, "_client", lambda _: self.cluster)
        put(session, "TrainingTry", self.try_again)
        put(session, "wait_in_worker", self.wait_in_worker)
        put(training_try, "STOP_WAIT_S", 2.0)
        put(killing, "read_together", read_one_after_the_other)
        put(job_package, "runtime_files", lambda: {"airflow_provider/__init__.py": b""})
        for module in (trigger_module, waiter):
            put(module, "sync_to_async", at_once)
        put(waiter, "_now", self.clocks.airflow)
        put(waiter, "time", SimpleNamespace(monotonic=self.clocks.monotonic))
        for module in (trigger_module, waiter):
            put(module, "asyncio", _Loop(self))
        put(trigger_module, "read_task_state", self.read_task_state)
        self._patch_runtime(put)

    def _patch_runtime(self, put: Callable[[object, str, Any], None]) -> None:
        put(tempfile, "tempdir", self.folder)
        put(driver_module, "open_store", lambda *_: DriverStore(self.bucket))
        put(driver_module, "utc_now", self.clocks.driver)
        put(driver_module, "choose_training", lambda *_, **__: None)
        put(driver_module, "Ending", drivers.SteppedEnding)
        put(driver_module, "Scribe", drivers.SteppedScribe)
        put(driver_module, "ClaimWatch", drivers.SteppedWatch)
        put(driver_module, "SigtermWatch", drivers.SteppedSigterm)
        time = SimpleNamespace(monotonic=self.clocks.monotonic, sleep=self.sleep)
        put(storage, "time", time)
        put(fit_loop, "time", time)
        put(restoring, "ThreadPoolExecutor", SerialPool)
        put(fit_loop, "read_attempts", partial(self._read_attempts, fit_loop.read_attempts))
        put(fit_loop, "resolve", partial(self._resolve, fit_loop.resolve))
        self.patches.setattr(speech, "print", lambda *_, **__: None, raising=False)

    def _me(self) -> DriverProcess:
        assert self.scheduler.current is not None
        driver: DriverProcess = self.scheduler.current.about
        return driver

    def _read_attempts(self, real: Any, store: Any, ref: Any, **fields: Any) -> Any:
        with suppress(RecordUnreadable):
            self.truth.begins_to_look(self._me(), has_own=self._me().driver.ending.facts.num_fits > 1)
        return real(store, ref, **fields)

    def _resolve(self, real: Any, *args: Any, **fields: Any) -> Any:
        try:
            found = real(*args, **fields)
        except Exception as error:
            self.truth.resolved(self._me(), error)
            raise
        self.truth.resolved(self._me(), found)
        return found


class _Loop:
    """What trigger and waiter ask asyncio for."""

    CancelledError = Killed

    def __init__(self, world: World) -> None:
        self._world = world

    def get_running_loop(self) -> None:
        """No loop."""

    def current_task(self) -> None:
        """No task."""

    async def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)

    async def wait_for(self, awaited: Awaitable[Any], _: float) -> Any:
        return await awaited


def at_once(call: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    """`sync_to_async` without threads."""

    async def called(*args: Any, **fields: Any) -> Any:
        return call(*args, **fields)

    return called


def read_one_after_the_other(reads: Any, *, within_s: float) -> list[Any]:
    """`read_together` without threads: all answer in time."""
    results = []
    for read in reads:
        try:
            results.append(read())
        except Exception:  # noqa: BLE001 - as the threads do
            results.append(killing.UNKNOWN)
    return results
