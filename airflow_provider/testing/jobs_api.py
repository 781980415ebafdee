"""A stand-in for Ray's Jobs API on a real socket, in a thread of its own: honest by default, with faults on request.

It models what Ray 2.60 was seen to do (status codes, wording, replay of the log from its start); the contract suite runs on
both. Jobs are steered by hand (`set_status`, `write_log`), by `driver`, or their entrypoints run (`runs_entrypoints=True`).
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from aiohttp import web
from typing_extensions import Self

from airflow_provider.testing.jobs_api_parts import (
    MAX_BODY,
    TERMINAL,
    FakeJob,
    Fault,
    Recorded,
    carry_out,
    check_submit,
    cut,
    kill,
    messages,
    read_body,
    too_large,
)


class FakeJobsServer:
    """Start with `with FakeJobsServer() as server`; everything public may be called from the test's thread."""

    def __init__(
        self,
        *,
        token: str | None = None,
        runs_entrypoints: bool = False,
        strips_authorization: bool = False,
        poll_s: float = 0.02,
        prefix: str = "",
    ) -> None:
        self.token = token
        self.runs_entrypoints = runs_entrypoints
        self.strips_authorization = strips_authorization
        self.prefix = prefix
        self.ray_version, self.session_name = "2.60.0", "session_fake_1"
        self.has_tail = True
        self.jobs: dict[str, FakeJob] = {}
        self.packages: dict[str, bytes] = {}
        self.requests: list[Recorded] = []
        self.faults: list[Fault] = []
        self.driver: Callable[[FakeJob], None] = lambda _: None
        """Called with each job that was accepted, before the answer: what its program does."""
        self.port = 0
        self._poll_s = poll_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="fake-jobs-server", daemon=True)
        self._is_ready = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None

    # --- for tests ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    @property
    def url(self) -> str:
        """Address for clients."""
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    def start(self) -> None:
        """Start the thread and wait until the port is open."""
        self._thread.start()
        if not self._is_ready.wait(timeout=10) or self._error:
            raise RuntimeError(f"fake server did not start: {self._error}")

    def stop(self) -> None:
        """Close all connections and end the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    def add(self, fault: Fault) -> Fault:
        """Arm a fault; the first that matches wins."""
        self.faults.append(fault)
        return fault

    def clear_faults(self) -> None:
        """Be honest again; requests that hang stay hanging."""
        self.faults.clear()

    def add_job(
        self, submission_id: str, *, status: str = "RUNNING", metadata: Mapping[str, str] | None = None, log: str = ""
    ) -> FakeJob:
        """Put a job there without a request."""
        request = {"submission_id": submission_id, "entrypoint": "python x.py", "metadata": dict(metadata or {})}
        job = FakeJob(request=request, status=status, log=log)
        self.jobs[submission_id] = job
        return job

    def set_status(
        self,
        submission_id: str,
        status: str,
        *,
        message: str | None = None,
        error_type: str | None = None,
        exit_code: int | None = None,
    ) -> None:
        """Move a job on."""
        job = self.jobs[submission_id]
        job.status, job.message, job.error_type, job.exit_code = status, message, error_type, exit_code
        if status in TERMINAL:
            job.end_time = int(time.time() * 1000)

    def write_log(self, submission_id: str, text: str) -> None:
        """Append to a job's log."""
        self.jobs[submission_id].log += text

    def replace_head(self) -> None:
        """Forget everything, as a new head without a persistent store does."""
        self.jobs.clear()
        self.packages.clear()
        number = int(self.session_name.rpartition("_")[2]) + 1
        self.session_name = f"session_fake_{number}"

    def num(self, method: str, path: str = ".*") -> int:
        """How many such requests came."""
        return sum(1 for seen in self.requests if seen.method == method and re.fullmatch(path, seen.path))

    @property
    def num_posts(self) -> int:
        """How many submits came."""
        return self.num("POST", r".*/api/jobs/")

    # --- server ------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            runner = self._loop.run_until_complete(self._open())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._error = error
            self._is_ready.set()
            return
        self._is_ready.set()
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._close(runner))
            self._loop.close()

    async def _open(self) -> web.AppRunner:
        app = web.Application(middlewares=[self._middleware], client_max_size=MAX_BODY)
        route = app.router
        base = self.prefix
        route.add_get(f"{base}/api/version", self._version)
        route.add_get(f"{base}/api/packages/gcs/{{name}}", self._get_package)
        route.add_put(f"{base}/api/packages/gcs/{{name}}", self._put_package)
        route.add_post(f"{base}/api/jobs/", self._submit)
        route.add_get(f"{base}/api/jobs/", self._list_jobs)
        route.add_get(f"{base}/api/jobs/{{id}}", self._with_job(self._get_job))
        route.add_post(f"{base}/api/jobs/{{id}}/stop", self._with_job(self._stop_job))
        route.add_get(f"{base}/api/jobs/{{id}}/logs", self._with_job(self._logs))
        route.add_get(f"{base}/api/jobs/{{id}}/logs/tail", self._with_job(self._tail))
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        await site.start()
        self.port = runner.addresses[0][1]
        return runner

    async def _close(self, runner: web.AppRunner) -> None:
        for job in self.jobs.values():
            kill(job)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await runner.cleanup()
        # Handlers that hang, and what the server keeps for each connection.
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        body = b"" if request.headers.get("Upgrade") else await read_body(request)
        port = request.transport.get_extra_info("peername")[1] if request.transport else 0
        self.requests.append(Recorded(request.method, request.path, dict(request.headers), body or b"", port))
        fault = next((fault for fault in self.faults if fault.takes(request)), None)
        if fault is not None and fault.kind != "drop":
            return await carry_out(fault, request)
        refused = self._refuse_identity(request)
        answer = refused or (too_large() if body is None else await handler(request))
        if fault is not None:
            cut(request)
        return answer

    def _refuse_identity(self, request: web.Request) -> web.Response | None:
        if self.token is None:
            return None
        sent = "" if self.strips_authorization else request.headers.get("Authorization", "")
        sent = sent or request.headers.get("X-Ray-Authorization", "")
        if not sent:
            return web.Response(status=401, text="Unauthorized: Missing authentication token")
        if sent != f"Bearer {self.token}":
            return web.Response(status=403, text="Forbidden: Invalid authentication token")
        return None

    def _with_job(self, handler: Callable[[web.Request, FakeJob], Any]) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            job = self.jobs.get(request.match_info["id"])
            if job is None:
                return web.Response(status=404, text=f"Job {request.match_info['id']} does not exist")
            return await handler(request, job)  # type: ignore[no-any-return]

        return handle

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response(
            {"version": "4", "ray_version": self.ray_version, "ray_commit": "fake", "session_name": self.session_name}
        )

    async def _get_package(self, request: web.Request) -> web.Response:
        uri = f"gcs://{request.match_info['name']}"
        return (
            web.Response() if uri in self.packages else web.Response(status=404, text=f"Package {uri} does not exist")
        )

    async def _put_package(self, request: web.Request) -> web.Response:
        self.packages[f"gcs://{request.match_info['name']}"] = await request.read()
        return web.Response()

    async def _submit(self, request: web.Request) -> web.Response:
        try:
            body = await request.json()
            check_submit(body)
        except (ValueError, TypeError) as error:
            return web.Response(
                status=400, text=f"Traceback (most recent call last):\n{type(error).__name__}: {error}\n"
            )
        name = body.get("submission_id")
        if name in self.jobs:
            text = f"ValueError: Job with submission_id {name} already exists. Please use a different submission_id."
            wrapped = (
                f"Traceback (most recent call last):\nRuntimeError: Request failed with status code 400: {text}\n."
            )
            return web.Response(status=500, text=wrapped)
        job = FakeJob(request=body)
        self.jobs[name] = job
        self.driver(job)
        if self.runs_entrypoints:
            task = self._loop.create_task(self._run(job))
            self._tasks.add(task)
        return web.json_response({"job_id": name, "submission_id": name})

    async def _list_jobs(self, _: web.Request) -> web.Response:
        return web.json_response([job.details() for job in self.jobs.values()])

    async def _get_job(self, _: web.Request, job: FakeJob) -> web.Response:
        return web.json_response(job.details())

    async def _stop_job(self, _: web.Request, job: FakeJob) -> web.Response:
        if job.status in TERMINAL:
            return web.json_response({"stopped": False})
        if job.status == "RUNNING":
            job.status, job.end_time = "STOPPED", int(time.time() * 1000)
            kill(job)
        return web.json_response({"stopped": True})

    async def _logs(self, _: web.Request, job: FakeJob) -> web.Response:
        return web.json_response({"logs": job.log})

    async def _tail(self, request: web.Request, job: FakeJob) -> web.StreamResponse:
        if not self.has_tail:
            return web.Response(status=404, text="404: Not Found")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        job.num_tails += 1
        if job.tails:
            script = job.tails.pop(0) if len(job.tails) > 1 else job.tails[0]
            for message in script.messages:
                await socket.send_str(message)
            if script.code == 0:
                cut(request)
            else:
                await socket.close(code=script.code)
            return socket
        await self._replay(request, socket, job)
        return socket

    async def _replay(self, request: web.Request, socket: web.WebSocketResponse, job: FakeJob) -> None:
        """As Ray does, which reads nothing meanwhile: pings and a closing handshake get no answer."""
        sent = 0
        while request.transport is not None and not request.transport.is_closing():
            was_over = job.status in TERMINAL
            for message in messages(job.log[sent:]):
                await socket.send_str(message)
                sent += len(message)
            if was_over and sent == len(job.log):
                await socket.close()
                return
            await asyncio.sleep(self._poll_s)

    async def _run(self, job: FakeJob) -> None:
        await asyncio.sleep(0.05)
        variables = (job.request.get("runtime_env") or {}).get("env_vars") or {}
        process = await asyncio.create_subprocess_shell(
            job.request["entrypoint"],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=os.environ | variables,
            start_new_session=True,
        )
        job.process, job.status = process, "RUNNING"
        output = process.stdout
        while output is not None and (data := await output.read(65536)):
            job.log += data.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\n")
        code = await process.wait()
        if job.status == "STOPPED":
            return
        job.exit_code, job.end_time = code, int(time.time() * 1000)
        job.status = "SUCCEEDED" if code == 0 else "FAILED"
        if code != 0:
            last = "\n".join(job.log.splitlines()[-10:])[-20_000:]
            job.message = (
                f"Job entrypoint command failed with exit code {code}, last available logs (truncated):\n{last}"
            )
            job.error_type = "JOB_ENTRYPOINT_COMMAND_ERROR"
