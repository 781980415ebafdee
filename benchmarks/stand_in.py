"""Starts the stand-in cluster and steers it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any

from benchmarks.options import ROOT

if TYPE_CHECKING:
    from typing_extensions import Self

    from benchmarks.stand_in_cluster import Settings


class RunningStandIn:
    """One stand-in, in a process of its own: `with RunningStandIn(settings) as cluster`."""

    def __init__(self, settings: Settings | None) -> None:
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    @classmethod
    def at(cls, url: str) -> RunningStandIn:
        """The one that another process has started."""
        found = cls(None)
        found.url = url
        return found

    def __enter__(self) -> Self:
        """Start it and wait for its port."""
        if self._settings is None:
            raise ValueError("this one was started elsewhere")
        command = [sys.executable, "-m", "benchmarks.stand_in_cluster", json.dumps(asdict(self._settings))]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        port = self._process.stdout.readline().strip() if self._process.stdout else ""
        if not port:
            raise RuntimeError(f"the stand-in did not start: exit code {self._process.wait()}")
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def begin(self) -> None:
        """Let it count anew."""
        _asked(f"{self.url}/stand-in/begin", {})

    def set_ends(self, ends: dict[str, float]) -> None:
        """Say when jobs end, in seconds of the wall clock."""
        _asked(f"{self.url}/stand-in/ends", ends)

    def counts(self) -> dict[str, int]:
        """What it was asked since `begin`."""
        return counts(self.url)


def counts(url: str) -> dict[str, int]:
    """The counts of the stand-in at this address."""
    found: dict[str, int] = json.loads(_asked(f"{url}/stand-in/counts", None))
    return found


def _asked(url: str, body: Any) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})  # noqa: S310 - loopback
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        text: str = answer.read().decode()
    return text
