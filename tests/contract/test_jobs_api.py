"""The fake Jobs API and Ray's own agree; what our client promises holds on both.

`jobs_api` is the one place where the servers are chosen.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.client import (
    AlreadyExists,
    AsyncJobsClient,
    ClusterAddress,
    ClusterCredentials,
    JobInfo,
    JobRequest,
    JobStatus,
    LogReader,
    SubmitAccepted,
    SubmitLimits,
    SubmitOrigin,
    SyncJobsClient,
    TailLimits,
    package_directory,
    package_files,
    websocket,
)
from airflow_provider.client import jobs_client as jobs_client_module
from airflow_provider.core.errors import ClusterAuthFailed, ForeignJob
from airflow_provider.testing.jobs_api import FakeJobsServer
from tests.stack.ray_cluster import RayCluster

pytestmark = pytest.mark.timeout(120)


@dataclass(frozen=True)
class JobsApi:
    """A running Jobs API."""

    address: str
    token: str
    is_real: bool

    def client(self, *, token: str | None = None, header_name: str = "Authorization") -> SyncJobsClient:
        """Blocking client."""
        credentials = ClusterCredentials(token=self.token if token is None else token, header_name=header_name)
        limits = SubmitLimits(first_wait_s=0.1)
        return SyncJobsClient(ClusterAddress.parse(self.address), credentials=credentials, submit_limits=limits)

    def async_client(self) -> AsyncJobsClient:
        """Asyncio client."""
        return AsyncJobsClient(ClusterAddress.parse(self.address), credentials=ClusterCredentials(token=self.token))

    def raw(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Without our client: what the server itself says."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}{path}", data=data, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture(scope="session", params=["fake", pytest.param("ray", marks=pytest.mark.ray)])
def jobs_api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobsApi]:
    """Each server once per session."""
    if request.param == "fake":
        with FakeJobsServer(token="fake-token", runs_entrypoints=True) as server:
            yield JobsApi(server.url, "fake-token", is_real=False)
        return
    state_dir: Path = tmp_path_factory.mktemp("ray")
    with RayCluster(state_dir, num_cpus=2) as cluster:
        yield JobsApi(cluster.address, cluster.token, is_real=True)


@pytest.fixture
def name() -> str:
    """A submission id that nobody used."""
    return f"contract-{uuid.uuid4().hex[:12]}"


def wait_for_end(client: SyncJobsClient, name: str) -> JobInfo:
    """Poll until the job has ended."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        job = client.get_job(name)
        assert job is not None
        if job.status.is_terminal:
            return job
        time.sleep(0.2)
    raise AssertionError(f"job {name} did not end")


def test_version_needs_the_token(jobs_api: JobsApi) -> None:
    with jobs_api.client() as client:
        version = client.version()
        assert version.ray_version.startswith("2.")
        assert version.session_name
    for token in ("", "wrong"):
        with jobs_api.client(token=token) as client, pytest.raises(ClusterAuthFailed):
            client.version()
    with jobs_api.client(header_name="X-Ray-Authorization") as client:
        assert client.version() == version


def test_a_job_is_in_the_list_of_all_jobs(jobs_api: JobsApi, name: str) -> None:
    with jobs_api.client() as client:
        client.submit(JobRequest(submission_id=name, entrypoint="echo hi", metadata={"who": name}))
        (listed,) = [job for job in client.list_jobs() if job.submission_id == name]
        assert listed.has_metadata({"who": name})
        wait_for_end(client, name)


def test_unknown_job(jobs_api: JobsApi, name: str) -> None:
    assert jobs_api.raw("GET", f"/api/jobs/{name}") == (404, f"Job {name} does not exist")
    with jobs_api.client() as client:
        assert client.get_job(name) is None
        assert client.stop(name) is False
        assert client.logs(name) is None


def test_submit_duplicate_and_metadata(jobs_api: JobsApi, name: str) -> None:
    request = JobRequest(name, "echo hello; echo world", {"dag": "d", "try": "1"}, {"env_vars": {"A": "1"}})
    with jobs_api.client() as client:
        first = client.submit_or_find(request)
        assert (first.origin, first.num_posts) == (SubmitOrigin.POSTED, 1)
        assert isinstance(client.submit(request), AlreadyExists)
        again = client.submit_or_find(request)
        assert again.origin is SubmitOrigin.FOUND
        assert again.job is not None
        assert again.job.has_metadata(request.metadata)
        with pytest.raises(ForeignJob):
            client.submit_or_find(JobRequest(name, "echo hello", {"dag": "other"}))
        job = wait_for_end(client, name)
        assert (job.status, job.error_type, job.driver_exit_code) == (JobStatus.SUCCEEDED, None, 0)
        assert job.start_time is not None
        assert job.end_time is not None
        assert job.start_time <= job.end_time
        part = client.logs(name)
        assert part is not None
        # Ray writes lines of its own, too, and "Running entrypoint" not always before the program's.
        assert "\nhello\nworld\n" in f"\n{part.text}"
        rest = client.logs(name, position=part.position - 6)
        assert rest is not None
        assert (rest.text, rest.position) == (part.text[-6:], part.position)
        assert client.stop(name) is False, "a job that has ended can't be stopped"


def test_duplicate_is_refused_in_words_we_know(jobs_api: JobsApi, name: str) -> None:
    body = {"submission_id": name, "entrypoint": "true"}
    assert jobs_api.raw("POST", "/api/jobs/", body)[0] == 200
    status, text = jobs_api.raw("POST", "/api/jobs/", body)
    assert status == 500
    assert f"Job with submission_id {name} already exists" in text


def test_failed_job(jobs_api: JobsApi, name: str) -> None:
    with jobs_api.client() as client:
        assert client.submit(JobRequest(name, "echo broken; exit 7")) == SubmitAccepted(name)
        job = wait_for_end(client, name)
    assert (job.status, job.error_type, job.driver_exit_code) == (
        JobStatus.FAILED,
        "JOB_ENTRYPOINT_COMMAND_ERROR",
        7,
    )
    assert job.message is not None
    assert "broken" in job.message


def test_stop(jobs_api: JobsApi, name: str) -> None:
    with jobs_api.client() as client:
        client.submit(JobRequest(name, "sleep 600"))
        deadline = time.monotonic() + 60
        while (job := client.get_job(name)) is not None and job.status is JobStatus.PENDING:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert client.stop(name) is True
        job = wait_for_end(client, name)
    assert (job.status, job.driver_exit_code) == (JobStatus.STOPPED, None)


@pytest.mark.parametrize(
    "body",
    [{"entrypoint": "true", "no_such_field": 1}, {"metadata": {}}, {"entrypoint": "true", "metadata": {"a": 1}}],
    ids=["unknown field", "no entrypoint", "metadata not text"],
)
def test_bad_field_is_a_400(jobs_api: JobsApi, name: str, body: dict[str, object]) -> None:
    status, text = jobs_api.raw("POST", "/api/jobs/", body | {"submission_id": name})
    assert status == 400
    assert "Error" in text.strip().splitlines()[-1]
    assert jobs_api.raw("GET", f"/api/jobs/{name}")[0] == 404


def test_packages(jobs_api: JobsApi, name: str, tmp_path: Path) -> None:
    """A working_dir and a module zip arrive where the job sees them (on real Ray; the fake only stores them)."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "data.txt").write_text(name)
    files = package_directory(tmp_path)
    module = package_files({"contract_module/__init__.py": f"VALUE = {name!r}\n".encode()})
    with jobs_api.client() as client:
        assert client.has_package(files.uri) is False
        assert client.ensure_package(files) is True
        assert client.ensure_package(files) is False
        assert client.has_package(files.uri) is True
        code = (
            "import contract_module; print('module', contract_module.VALUE); print('file', open('sub/data.txt').read())"
        )
        environment = {"working_dir": files.uri, "py_modules": [module.uri]}
        entrypoint = f'python -c "{code}"' if jobs_api.is_real else "true"
        client.submit_or_find(JobRequest(name, entrypoint, runtime_env=environment), packages=[files, module])
        assert client.has_package(module.uri) is True
        assert wait_for_end(client, name).status is JobStatus.SUCCEEDED
        if jobs_api.is_real:
            part = client.logs(name)
            assert part is not None
            assert f"module {name}\nfile {name}\n" in part.text


def test_package_over_the_limit(jobs_api: JobsApi) -> None:
    """The server's own words; our client refuses such a package before it sends it."""
    path = f"/api/packages/gcs/_ray_pkg_{uuid.uuid4().hex}.zip"
    request = urllib.request.Request(f"{jobs_api.address}{path}", data=b"x" * (100 * 1024 * 1024 + 1), method="PUT")
    request.add_header("Authorization", f"Bearer {jobs_api.token}")
    with pytest.raises((urllib.error.HTTPError, urllib.error.URLError, ConnectionError)) as error:
        urllib.request.urlopen(request, timeout=60)
    if isinstance(error.value, urllib.error.HTTPError):
        with error.value:
            assert error.value.code == 413


def test_tail_shows_each_line_once(jobs_api: JobsApi, name: str) -> None:
    """Over a cut in the middle, by a second process that knows only the position."""
    script = "for i in $(seq 1 25); do echo line $i; done; sleep 2; printf 'a\\rb\\rc\\nlast without end'"

    async def run() -> tuple[list[str], list[str]]:
        first: list[str] = []
        position = 0
        async with jobs_api.async_client() as client:
            await client.submit(JobRequest(name, script))
            async with aclosing(client.tail(name)) as chunks:
                async for chunk in chunks:
                    first += chunk.lines
                    position = chunk.position
                    if "line 12" in first:
                        break
        async with jobs_api.async_client() as client:
            second = [
                line
                async for chunk in client.tail(
                    name, reader=LogReader(position=position), limits=TailLimits(first_wait_s=0.2)
                )
                for line in chunk.lines
            ]
            part = await client.logs(name)
            assert part is not None
            assert part.text.endswith("a\nb\nc\nlast without end"), "a carriage return counts as a line end"
        return first, second

    first, second = asyncio.run(run())
    shown = [line for line in first + second if line.startswith("line ")]
    assert shown == [f"line {n}" for n in range(1, 26)]
    assert second[-4:] == ["a", "b", "c", "last without end"]


@pytest.mark.slow
def test_a_log_is_tailed_on_one_connection_though_no_ping_is_answered(
    jobs_api: JobsApi, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray reads nothing while it tails. Who waits 20 s for its answer, as is usual, cuts the session and fetches the whole log again."""
    monkeypatch.setattr(websocket, "PING_S", 1.0)
    num_opened = 0

    def counted(*args: Any) -> Any:
        nonlocal num_opened
        num_opened += 1
        return websocket.open_tail(*args)

    monkeypatch.setattr(jobs_client_module, "open_tail", counted)

    async def run() -> list[str]:
        async with jobs_api.async_client() as client:
            await client.submit(JobRequest(name, "for i in $(seq 1 30); do echo line $i; sleep 1; done"))
            while (job := await client.get_job(name)) is None or job.status is not JobStatus.RUNNING:  # noqa: ASYNC110 - a server in another process
                await asyncio.sleep(0.1)
            return [line async for chunk in client.tail(name) for line in chunk.lines]

    assert [line for line in asyncio.run(run()) if line.startswith("line ")] == [f"line {n}" for n in range(1, 31)]
    assert num_opened == 1


def test_the_size_of_a_log_is_that_of_its_answer(jobs_api: JobsApi, name: str) -> None:
    """Asked without fetching it; a text beyond ASCII is escaped in the answer, and counted so."""

    async def run() -> int | None:
        async with jobs_api.async_client() as client:
            await client.submit(JobRequest(name, "printf 'größer\\n\\tals \"a\"'"))
            async for _ in client.tail(name, limits=TailLimits(first_wait_s=0.2)):
                pass
            return await client.log_size(name)

    size = asyncio.run(run())
    request = urllib.request.Request(f"{jobs_api.address}/api/jobs/{name}/logs")
    request.add_header("Authorization", f"Bearer {jobs_api.token}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        body = answer.read()
    assert b"als" in body
    assert size == len(body)


def test_tail_past_a_line_that_is_too_large(jobs_api: JobsApi, name: str) -> None:
    """A line of 6 MiB: whatever the server does with it, what follows is shown and nothing twice."""
    # Ray writes "Running entrypoint ..." when the entrypoint runs already: without waiting for it, it would land inside our line.
    script = (
        "if [ -f /dev/stdout ]; then until grep -q '^Running entrypoint' < /dev/stdout; do :; done; fi;"
        " echo first; head -c 6291456 /dev/zero | tr '\\0' x; echo; echo after; sleep 1; echo last"
    )
    limits = TailLimits(first_wait_s=0.1, max_wait_s=0.2, poll_s=0.2, max_partial=20_000_000, final_chars=20_000_000)

    async def run() -> list[str]:
        async with jobs_api.async_client() as client:
            await client.submit(JobRequest(name, script))
            return [line async for chunk in client.tail(name, limits=limits) for line in chunk.lines]

    lines = [line for line in asyncio.run(run()) if line[:1] in {"f", "x", "a", "l"}]
    assert [line[:5] for line in lines] == ["first", "xxxxx", "after", "last"]
    assert "cut" in lines[1]
