"""A user's own script under our driver: one child in a process group of its own, which never outlives the driver."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from airflow_provider.core.errors import InvalidConfig, RayJobFailed
from airflow_provider.core.failure import Failure, FailureKind

CONTEXT_ENV = "RAY_TRAIN_AIRFLOW_CONTEXT"
_TERM_GRACE_S = 2.0


@dataclass(frozen=True)
class ChildContext:
    """What the script's side of the runtime has to know; travels in one environment variable."""

    events_path: str
    failure_path: str
    """Where the script's last exception is left, classified."""
    spec_path: str
    is_fenced: bool

    def env(self) -> dict[str, str]:
        """The variable to add to the script's environment."""
        return {CONTEXT_ENV: json.dumps(asdict(self))}

    @classmethod
    def from_env(cls) -> ChildContext:
        """Read it back. Raises InvalidConfig outside a job of ours."""
        text = os.environ.get(CONTEXT_ENV)
        if not text:
            raise InvalidConfig(
                "airflow_provider.runtime.run_config() was called outside a job of RayTrainOperator",
                change="run the script with RayTrainOperator(entrypoint=...), or build a RunConfig of your own",
            )
        try:
            return _CONTEXT.validate_json(text)
        except (ValidationError, UnicodeEncodeError):
            raise InvalidConfig(
                f"{CONTEXT_ENV} in the environment can't be read",
                known="the driver sets it for the script that it starts",
                change="leave it as it is",
            ) from None


_CONTEXT = TypeAdapter(ChildContext)


class ScriptFailed(RayJobFailed):
    """The script ended with an error; `failure` says which."""


class Child:
    """Runs the command and kills its whole process group when told, or when the driver dies in any way."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, command: str, context: ChildContext) -> None:
        """Run to the end. Raises ScriptFailed with what the script left behind, or what its exit code says."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(context.failure_path)
        # A session of its own, so that one signal reaches the script and everything it starts.
        self._process = subprocess.Popen(  # noqa: S602 the user's own command
            command, shell=True, env={**os.environ, **context.env()}, start_new_session=True
        )
        guard = _start_guard(self._process.pid)
        try:
            code = self._process.wait()
        except BaseException:
            self.stop()
            raise
        finally:
            guard.terminate_quietly()
        self._process = None
        if code != 0:
            raise _failed(code, Path(context.failure_path))

    def stop(self) -> None:
        """SIGTERM to the group, then SIGKILL."""
        process = self._process
        if process is None:
            return
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TERM_GRACE_S)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the group, at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


class _Guard:
    """A shell that kills the group once the driver's end of a pipe closes, which also SIGKILL of the driver does."""

    def __init__(self, process: subprocess.Popen[bytes], write_end: int) -> None:
        self._process, self._write_end = process, write_end

    def terminate_quietly(self) -> None:
        """The group ended by itself: the guard has nothing to do any more (its pid may be used again)."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            os.close(self._write_end)


def _start_guard(group: int) -> _Guard:
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"trap '' TERM INT HUP; read _; kill -9 -{group}"], stdin=read_end, start_new_session=True
    )
    os.close(read_end)
    return _Guard(process, write_end)


def _failed(code: int, failure_path: Path) -> ScriptFailed:
    with contextlib.suppress(OSError, ValueError):
        failure = Failure.model_validate_json(failure_path.read_bytes())
        return ScriptFailed("The script failed", known=failure.reason, failure=failure)
    number = -code if code < 0 else code - 128
    if code < 0 or 128 < code < 160:
        failure = Failure(kind=FailureKind.INFRASTRUCTURE, reason=f"the script's process was killed by signal {number}")
    else:
        failure = Failure(kind=FailureKind.USER, reason=f"the script ended with exit code {code}")
    return ScriptFailed("The script failed", known=failure.reason, failure=failure)
