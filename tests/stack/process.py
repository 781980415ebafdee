"""What all services share: a held process tree, free ports, and waiting with a deadline that tells why it failed."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

LOOPBACK: Final = "127.0.0.1"
_KEEPER: Final = Path(__file__).with_name("keeper.py")
# Below Linux' ephemeral range, so that no outgoing connection takes a port between our choice and the server's bind; above Ray's own
# default worker ports.
_PORTS: Final = range(20_000, 30_000)
_taken: set[int] = set()
_lock = threading.Lock()

# A developer's own settings must not reach the services: a proxy, another cluster's address, real cloud keys.
_DROPPED_ENV: Final = (
    "AIRFLOW",
    "AWS_",
    "RAY_",
    "PYTHONPATH",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "_AIRFLOW",
    "PYTEST",
)


class StackError(Exception):
    """A service did not start, ended, or did not answer in time; the message holds the end of its log."""


def free_port() -> int:
    """A port on loopback that nobody listens on and that this process gave out to no one else."""
    with _lock:
        for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
            if port not in _taken and _is_bindable(port):
                _taken.add(port)
                return port
    message = f"no free port between {_PORTS.start} and {_PORTS.stop}"
    raise StackError(message)


def _is_bindable(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def clean_env(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a service: ours, less what would steer it elsewhere, with a private home."""
    kept = {key: value for key, value in os.environ.items() if not key.upper().startswith(_DROPPED_ENV)}
    home.mkdir(parents=True, exist_ok=True)
    own = {
        "HOME": str(home),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "PYTHONUNBUFFERED": "1",
    }
    own["RAY_AUTH_MODE"] = "token"  # Ray's own default hangs on a file in the home
    # Ray and Airflow start `python` by name: it must be this interpreter.
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return kept | own | {"PATH": path} | dict(extra or {})


def program(name: str) -> str:
    """The path of a program that is installed beside this interpreter, or else on PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        message = f"{name} is not installed beside {sys.executable}; run `make clean setup`, with PYTHON=... also EXTRAS=test,lint"
        raise StackError(message)
    return found


def tail(log: Path, lines: int = 30) -> str:
    """The last lines of a log file, for an error message."""
    if not log.exists():
        return "(no log)"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


class HeldProcess:
    """One started command and its process tree. Dies with this Python process, however that one ends."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str],
        cwd: Path,
        user: int | None = None,
        scratch: Path | None = None,
    ) -> None:
        """Start it; output is appended to `log`.

        As root, `user` names the uid to run it under. `scratch` is removed if this Python process is killed; otherwise it is the
        caller's to remove.
        """
        self.log = log
        options = [] if user is None else ["--user", str(user)]
        options += [] if scratch is None else ["--scratch", str(scratch)]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            # -S and -I: start in 20 ms and import nothing of the project.
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_KEEPER), *options, "--", *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )
        assert self._keeper.stdout is not None
        with self._keeper.stdout as answer:
            first = answer.readline()
        if not first.strip():
            self._wait(10)
            message = f"could not start {argv[0]}:\n{tail(log)}"
            raise StackError(message)
        self.pid = int(first)

    def is_alive(self) -> bool:
        """Whether the main process runs (its orphans don't count)."""
        try:
            process = psutil.Process(self.pid)
            return process.ppid() == self._keeper.pid and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def tree(self) -> list[psutil.Process]:
        """Every living process of this service, orphans and daemons included."""
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(self._keeper.pid).children(recursive=True)
            return [process for process in below if _is_living(process)]
        return []

    def stop(self, *, number: int = signal.SIGTERM, grace_s: float = 10.0) -> None:
        """Ask the main process to end, kill the whole tree after `grace_s`. Nothing is left on return."""
        self._order(f"stop {number:d} {grace_s}")
        self._wait(grace_s + 30)

    def kill(self) -> None:
        """SIGKILL the whole tree at once, as when the machine is lost."""
        self._order("kill")
        self._wait(30)

    def kill_main(self) -> None:
        """SIGKILL the main process only. What it leaves behind runs on, until `stop` or `kill`."""
        self._order("kill-main")
        wait_until(lambda: not self.is_alive(), timeout_s=10, what=f"SIGKILL of {self.pid}", every_s=0.02)

    def _order(self, line: str) -> None:
        assert self._keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # the tree ended on its own, and the keeper with it
            self._keeper.stdin.write(f"{line}\n".encode())
            self._keeper.stdin.flush()

    def _wait(self, timeout_s: float) -> None:
        try:
            self._keeper.wait(timeout_s)
        finally:
            assert self._keeper.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.close()


def _is_living(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def wait_until(
    probe: Callable[[], bool], *, timeout_s: float, what: str, process: HeldProcess | None = None, every_s: float = 0.1
) -> None:
    """Poll until `probe` is true; a process that ends meanwhile, or the deadline, raises with the end of its log."""
    start = time.monotonic()
    while not probe():
        ended = process is not None and not process.is_alive()
        if ended or time.monotonic() - start > timeout_s:
            why = "its process ended" if ended else f"not so after {timeout_s:.0f} s"
            log = "" if process is None else f"\n{process.log}:\n{tail(process.log)}"
            message = f"{what}: {why}{log}"
            raise StackError(message)
        time.sleep(every_s)


class Service(ABC):
    """A real service on loopback. `start` returns when it answers; `stop` returns when no process of it is left."""

    name: str

    stop_signal = signal.SIGTERM
    stop_grace_s = 10.0

    def __init__(self, state_dir: Path) -> None:
        """Keep logs and data of this service below `state_dir`, which `stop` leaves there to be read."""
        self.state_dir = state_dir
        self.process: HeldProcess | None = None
        self._killed: list[HeldProcess] = []

    @property
    def log(self) -> Path:
        """The service's output."""
        return self.state_dir / f"{self.name}.log"

    @abstractmethod
    def start(self) -> None:
        """Start it and wait until it answers. After `kill`, start it again with the same address and data."""

    def stop(self) -> None:
        """Stop it, politely first. Safe to call again, or before `start`."""
        if self.process is not None:
            self.process.stop(number=self.stop_signal, grace_s=self.stop_grace_s)
        self._clear_killed()

    def kill(self) -> None:
        """SIGKILL all of its processes at once."""
        if self.process is not None:
            self.process.kill()
        self._clear_killed()

    def kill_main(self) -> None:
        """SIGKILL the main process only; what it leaves behind runs on until `stop` or `kill`, also across a `start`."""
        if self.process is not None:
            self.process.kill_main()
            self._killed.append(self.process)
            self.process = None

    def is_alive(self) -> bool:
        """Whether its main process runs."""
        return self.process is not None and self.process.is_alive()

    def processes(self) -> list[psutil.Process]:
        """All living processes of this service, for faults aimed at one of them."""
        held = [*self._killed, *([] if self.process is None else [self.process])]
        return [process for one in held for process in one.tree()]

    def _clear_killed(self) -> None:
        for former in self._killed:
            former.kill()
        self._killed.clear()
        self.process = None

    def __enter__(self) -> Self:
        """Start, leaving nothing behind if that fails."""
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()


def find_processes(services: Sequence[Service], matching: str) -> Iterator[psutil.Process]:
    """Processes of these services whose command line contains `matching`."""
    for service in services:
        for process in service.processes():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if matching in " ".join(process.cmdline()):
                    yield process
