"""Bucket, cluster and Airflow as the product's processes see them: each call is one that may come late, fail or be lost."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import Self

from airflow_provider.client.credentials import ClusterCredentials
from airflow_provider.client.values import AlreadyExists, ClusterVersion, JobInfo, JobRequest, Package, SubmitAccepted
from airflow_provider.core.errors import ClusterTimeout, ClusterUnreachable, StoreUnreachable
from airflow_provider.core.job import JOB_SPEC_FILE
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.record_parts import CheckpointFile
from airflow_provider.runtime.storage import ExperimentStore
from tests.support.experiment import NOW
from tests.support.fake_airflow import MARKER_KEY, FakeStateStore, FakeTaskInstance, refused
from tests.support.fake_jobs_client import FakeJobsClient, job
from tests.support.memory_store import MemoryStore
from tests.unit.machine.processes import Call, Killed

if TYPE_CHECKING:
    from tests.unit.machine.airflow import Airflow, TryRun
    from tests.unit.machine.world import World

T = TypeVar("T")
TOKEN = "pl4nted-S3cr3t-t0ken"
"""The connection's; no record, XCom, trigger row or job may hold it."""
_NO_ENV = "RUNTIME_ENV_SETUP_FAILURE"
AWS_KEY = "AKIAPLANTED0SECRET00"
"""Stands in what Ray says about a failed job."""


@dataclass
class Clocks:
    """One time, and how far the machines' clocks are off."""

    passed_s: float = 0.0
    airflow_off_s: float = 0.0
    driver_off_s: float = 0.0

    def store(self) -> datetime:
        return NOW + timedelta(seconds=self.passed_s)

    def airflow(self) -> datetime:
        return self.store() + timedelta(seconds=self.airflow_off_s)

    def driver(self) -> datetime:
        return self.store() + timedelta(seconds=self.driver_off_s)

    def monotonic(self) -> float:
        return self.passed_s


class Bucket(MemoryStore):
    """The experiment's objects. `world` learns of each effect."""

    def __init__(self, uri: str, world: World) -> None:
        super().__init__(uri, clock=world.clocks.store)
        self._world = world

    def _run(self, verb: str, key: str, effect: Callable[[], T]) -> T:
        def seen() -> T:
            result = effect()
            self._world.truth.read(self._world.scheduler.current, verb, key, result)
            return result

        lost = StoreUnreachable("The reply was lost", may_be_written=verb not in ("read", "head", "list"))
        return self._world.scheduler.call(
            Call("bucket", verb, key), seen, lambda: StoreUnreachable("The bucket is away"), lambda: lost
        )

    def _put(self, key: str, body: bytes) -> str:
        process = self._world.scheduler.current
        if process is not None and self._world.truth.is_known_window(process, key):
            process.is_killed = True
            raise Killed
        etag = super()._put(key, body)
        self._world.truth.wrote(process, key, body)
        return etag

    def delete(self, key: str) -> None:
        def gone() -> None:
            self._objects.pop(key, None)
            self._world.truth.deleted(self._world.scheduler.current, key)

        self._run("delete", key, gone)

    def body(self, key: str) -> bytes | None:
        """As it lies there; not a call."""
        found = self._objects.get(key)
        return found.body if found else None

    def names(self) -> list[str]:
        return sorted(self._objects)

    def remove_raw(self, key: str) -> None:
        """As a lifecycle rule does; not a call."""
        self._objects.pop(key, None)

    def snapshot(self) -> dict[str, Any]:
        return dict(self._objects)


class DriverStore(ExperimentStore):
    """The same bucket as the driver's: the methods that touch pyarrow, on the store in memory."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket, self.root = bucket, bucket.uri

    def check_bucket(self) -> None:
        """It is there."""

    def read(self, key: str) -> bytes | None:
        found = self.bucket.read(key)
        return found.body if found else None

    def exists(self, key: str) -> bool:
        return self.bucket.head(key) is not None

    def write(self, key: str, body: bytes) -> None:
        self.bucket.write(key, body)

    def folders(self, folder: str) -> list[str]:
        return [name.rstrip("/").rpartition("/")[2] for name in self.bucket.list_folders(f"{folder}/")]

    def names(self, folder: str) -> list[str]:
        return [info.key.rpartition("/")[2] for info in self.bucket.list_folder(f"{folder}/").objects]

    def files(self, folder: str) -> list[CheckpointFile]:
        found = self.bucket.list(f"{folder}/")
        return [CheckpointFile(key=info.key.removeprefix(f"{folder}/"), size=info.size) for info in found]

    def with_etags(self, folder: str, files: Sequence[CheckpointFile], *, limit: int) -> tuple[CheckpointFile, ...]:
        tagged = []
        for file in files[:limit]:
            info = self.bucket.head(f"{folder}/{file.key}")
            tagged.append(replace(file, etag=info.etag if info else ""))
        return (*tagged, *files[limit:])

    def copy_folder(self, source: str, target: str) -> None:
        for file in self.files(source):
            self.bucket.copy(f"{source}/{file.key}", f"{target}/{file.key}")

    def delete_folder(self, folder: str) -> None:
        """Ray's retention."""
        for file in self.files(folder):
            self.bucket.delete(f"{folder}/{file.key}")


class Cluster(FakeJobsClient):
    """The dashboard: jobs by id, silence, another session after a replacement; a POST starts a driver."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._num_sessions = 1

    def close(self) -> None:
        """One client for all: nothing to close."""

    def _call(self, verb: str, about: str, effect: Callable[[], T]) -> T:  # type: ignore[override]
        return self._world.scheduler.call(
            Call("cluster", verb, about),
            effect,
            lambda: ClusterUnreachable("The connection was refused"),
            lambda: ClusterTimeout("No answer in time"),
        )

    def version(self) -> ClusterVersion:
        return self._call("version", "", super().version)

    def get_job(self, submission_id: str) -> JobInfo | None:
        return self._call("get_job", submission_id, lambda: FakeJobsClient.get_job(self, submission_id))

    def has_package(self, uri: str) -> bool:
        return self._call("has_package", "", lambda: FakeJobsClient.has_package(self, uri))

    def upload_package(self, package: Package) -> None:
        self._call("upload_package", "", lambda: FakeJobsClient.upload_package(self, package))

    def submit(self, request: JobRequest) -> SubmitAccepted | AlreadyExists:
        def post() -> SubmitAccepted | AlreadyExists:
            answer = FakeJobsClient.submit(self, request)
            uri = request.runtime_env["py_modules"][0]
            if isinstance(answer, SubmitAccepted) and uri in self.packages:
                self._world.start_driver(request, spec_of(self.packages[uri]))
            elif isinstance(answer, SubmitAccepted):
                # The head was replaced between upload and POST.
                said = f"runtime_env setup failed: Failed to download runtime_env file package {uri}"
                self.set_status(request.submission_id, "FAILED", error_type=_NO_ENV, message=said)
            return answer

        return self._call("submit", request.submission_id, post)

    def stop(self, submission_id: str) -> bool:
        """Ray ignores a stop of a PENDING job; a running one gets SIGTERM, and is STOPPED once it has ended."""

        def stopped() -> bool:
            self._ask("stop", submission_id)
            self._world.stop_job(submission_id)
            return True

        return self._call("stop", submission_id, stopped)

    def set_status(self, submission_id: str, status: str, **changes: Any) -> None:
        self.jobs[submission_id] = job(submission_id, status, metadata=self.jobs[submission_id].metadata, **changes)

    def replace(self) -> None:
        """A new head: no job is known."""
        self._num_sessions += 1
        self.session_name = f"session_{self._num_sessions}"
        self.jobs.clear()
        self.packages.clear()


class AsyncCluster:
    """The same for the trigger, whose coroutines the test drives by hand."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def version(self) -> ClusterVersion:
        return self._cluster.version()

    async def get_job(self, submission_id: str) -> JobInfo | None:
        return self._cluster.get_job(submission_id)

    async def stop(self, submission_id: str) -> bool:
        return self._cluster.stop(submission_id)

    async def close(self, *, is_broken: bool = False) -> None:
        """Nothing to close."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close."""


def hook_of(cluster: Cluster) -> type:
    """A RayHook whose connection leads to this cluster."""

    class Hook:
        def __init__(self, conn_id: str) -> None:
            self.conn_id = conn_id

        def target(self) -> tuple[Any, ClusterCredentials]:
            return cluster.address, ClusterCredentials(token=TOKEN)

        def client(self) -> Cluster:
            return cluster

        async def aclient(self) -> AsyncCluster:
            return AsyncCluster(cluster)

    return Hook


def spec_of(package: Package) -> JobSpec:
    """The document that a driver reads in its package."""
    with zipfile.ZipFile(io.BytesIO(package.content)) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(JOB_SPEC_FILE)]
        return JobSpec.model_validate_json(archive.read(name))


@dataclass
class LiveStateStore(FakeStateStore):
    """The task's state store as one process reaches it: refused once Airflow has archived its task instance."""

    airflow: Airflow = None  # type: ignore[assignment]
    run: TryRun = None  # type: ignore[assignment]

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        def kept() -> None:
            self.refusal = refused(404) if self.run.is_archived and not self.run.is_weak else None
            FakeStateStore.set(self, key, value, retention=retention)
            if key == MARKER_KEY:
                self.run.confirmed = not self.run.is_archived
            self.airflow.said.append(value)

        verb = "marker" if key == MARKER_KEY else "keep"
        self.airflow.world.scheduler.call(Call("airflow", verb), kept, *[lambda: refused(500)] * 2)


@dataclass
class LiveTaskInstance(FakeTaskInstance):
    """A task instance as one process of Airflow's got it; its state is asked for anew."""

    airflow: Airflow = None  # type: ignore[assignment]
    run: TryRun = None  # type: ignore[assignment]
    xcoms: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        def pushed() -> None:
            self.airflow.push(self.run, key, value)

        self.airflow.world.scheduler.call(Call("airflow", "push", key), pushed, *[lambda: refused(500)] * 2)

    def get_task_states(self, **query: Any) -> dict[str, Any]:
        return self.airflow.world.scheduler.call(
            Call("airflow", "state"),
            lambda: {self.run_id: {self.task_id: self.airflow.state}},
            *[lambda: refused(500)] * 2,
        )


class SerialPool:
    """The driver's reading threads, one after the other: each read is a step."""

    def __init__(self, _: int) -> None:
        """Any number of readers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def map(self, call: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        return [call(item) for item in items]
