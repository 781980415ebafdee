"""What the bucket was told, in order: claims, restores, commits and outcomes of one experiment, as a gate saw them pass."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tests.chaos.points import is_write, path_of

if TYPE_CHECKING:
    from tests.stack.gate import Seen
    from tests.stack.s3 import S3Server

_RECORD = re.compile(
    r"^/models/(?P<experiment>.+)/g(?P<generation>\d{6})/attempts/(?P<attempt>\d{6})/"
    r"(?P<name>claim|restored|outcome|checkpoint_manager_snapshot)\.json$"
)


@dataclass(frozen=True)
class Event:
    """One object that an attempt wrote. `names` and `latest` are a manifest's; `latest` is also what was restored."""

    kind: str
    rank: tuple[int, int]
    names: tuple[str, ...] = ()
    latest: str | None = None


class Observer:
    """Collects events of the experiments under one prefix. Called by the gate before each answer leaves."""

    def __init__(self, s3: S3Server, *, prefix: str) -> None:
        """`prefix` is the start of the experiments' keys, without the bucket."""
        self._client = s3.client()
        self._prefix = prefix
        self._lock = threading.Lock()
        self.events: list[Event] = []

    def __call__(self, seen: Seen) -> None:
        """Take one answered request."""
        if not is_write(seen) or seen.status // 100 != 2:
            return
        match = _RECORD.match(unquote(path_of(seen)))
        if match is None or not match["experiment"].startswith(self._prefix):
            return
        key = match.group(0).removeprefix("/models/")
        body = self._client.get_object(Bucket="models", Key=key)["Body"].read()
        rank = int(match["generation"]), int(match["attempt"])
        with self._lock:
            self.events.append(_event(match["name"], rank, json.loads(body)))

    def ranks(self, kind: str) -> list[tuple[int, int]]:
        """Attempts that wrote such a record, in order."""
        with self._lock:
            return [event.rank for event in self.events if event.kind == kind]

    def num_commits(self, rank: tuple[int, int]) -> int:
        """Own commits that an attempt's manifest has listed so far."""
        own = own_prefix(rank)
        with self._lock:
            return max((sum(n.startswith(own) for n in e.names) for e in self.events if e.rank == rank), default=0)


def own_prefix(rank: tuple[int, int]) -> str:
    """How the names of an attempt's own checkpoints begin."""
    return f"attempts/{rank[1]:06d}/"


def _event(name: str, rank: tuple[int, int], body: dict[str, Any]) -> Event:
    if name == "restored":
        return Event(name, rank, latest=body["checkpoint"])
    if name != "checkpoint_manager_snapshot":
        return Event(name, rank)
    latest = body["latest_checkpoint_result"]
    names = tuple(entry["checkpoint_dir_name"] for entry in body["checkpoint_results"])
    return Event("manifest", rank, names, latest["checkpoint_dir_name"] if latest else None)
