"""What the bucket was told, in order: claims, restores, commits, deletions and outcomes of one experiment, as a gate saw them pass."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tests.chaos.points import is_deletion, is_write, path_of

if TYPE_CHECKING:
    from tests.stack.gate import Seen
    from tests.stack.s3 import S3Server

BUCKET = "models"
_ATTEMPT = r"^(?P<generation>.+/g(?P<g>\d{6}))/attempts/(?P<n>\d{6})/"
_RECORD = re.compile(_ATTEMPT + r"(?P<name>claim|restored|outcome|checkpoint_manager_snapshot)\.json$")
_CHECKPOINT_FILE = re.compile(_ATTEMPT + r"(?P<folder>(?!records/)[^/]+)/(?P<file>.*[^/])$")


@dataclass(frozen=True)
class Event:
    """One object that an attempt wrote. `names` and `latest` are a manifest's; `latest` is also what was restored.

    "deleted" is no record: it names one checkpoint of which a file has gone, by the attempt that committed it. Who deleted it
    no request tells.
    """

    kind: str
    rank: tuple[int, int]
    names: tuple[str, ...] = ()
    latest: str | None = None


class Observer:
    """Collects events of the experiments under one prefix. Called by the gate before each answer leaves."""

    def __init__(self, s3: S3Server, *, prefix: str, is_watching_deletions: bool = False) -> None:
        """`prefix` is the start of the experiments' keys, without the bucket. Each deletion that is watched costs a listing."""
        self._client = s3.client()
        self._prefix = prefix
        self._is_watching = is_watching_deletions
        self._lock = threading.Lock()
        self._uploaded: set[str] = set()
        """Keys of checkpoints' files that were there when somebody last looked."""
        self.events: list[Event] = []

    def __call__(self, seen: Seen) -> None:
        """Take one answered request."""
        if seen.status // 100 != 2:
            return
        path = unquote(path_of(seen))
        with self._lock:
            if is_write(seen) and path.startswith(f"/{BUCKET}/{self._prefix}"):
                self._take(path.removeprefix(f"/{BUCKET}/"))
            elif self._is_watching and is_deletion(seen):
                self._note_deleted()

    def look(self) -> None:
        """Note what has gone by now, whether a request was seen to delete it or not."""
        with self._lock:
            self._note_deleted()

    def ranks(self, kind: str) -> list[tuple[int, int]]:
        """Attempts that wrote such a record, in order."""
        with self._lock:
            return [event.rank for event in self.events if event.kind == kind]

    def num_commits(self, rank: tuple[int, int]) -> int:
        """Own commits that an attempt's manifest has listed so far, all that retention dropped since among them."""
        own = own_prefix(rank)
        with self._lock:
            manifests = [e for e in self.events if e.kind == "manifest" and e.rank == rank]
        return len({name for event in manifests for name in event.names if name.startswith(own)})

    def _take(self, key: str) -> None:
        if _CHECKPOINT_FILE.match(key):
            self._uploaded.add(key)
        match = _RECORD.match(key)
        if match is None:
            return
        rank = int(match["g"]), int(match["n"])
        if self._is_watching and match["name"] != "checkpoint_manager_snapshot":
            # A deletion whose answer a fault cut off went before this record: in its place it is judged rightly.
            self._note_deleted()
        body = self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        self.events.append(_event(match["name"], rank, json.loads(body)))

    def _note_deleted(self) -> None:
        generations = {match["generation"] for key in self._uploaded if (match := _CHECKPOINT_FILE.match(key))}
        there = {key for folder in generations for key in sizes_below(self._client, f"{folder}/attempts/")}
        gone, self._uploaded = self._uploaded - there, self._uploaded & there
        for rank, name in sorted({_checkpoint_of(key) for key in gone}):
            self.events.append(Event("deleted", rank, (name,)))


def sizes_below(client: Any, prefix: str) -> dict[str, int]:
    """All objects of the bucket whose keys begin so, with their sizes. A folder's marker is none."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    found = {entry["Key"]: entry["Size"] for page in pages for entry in page.get("Contents", ())}
    return {key: size for key, size in found.items() if not key.endswith("/")}


def own_prefix(rank: tuple[int, int]) -> str:
    """How the names of an attempt's own checkpoints begin."""
    return f"attempts/{rank[1]:06d}/"


def split_file(key: str) -> tuple[str, str] | None:
    """Of a checkpoint's file the checkpoint, by its name relative to the generation, and the name in there; None for other keys."""
    match = _CHECKPOINT_FILE.match(key)
    return (f"attempts/{match['n']}/{match['folder']}", match["file"]) if match else None


def _checkpoint_of(key: str) -> tuple[tuple[int, int], str]:
    match = _CHECKPOINT_FILE.match(key)
    assert match is not None
    return (int(match["g"]), int(match["n"])), f"attempts/{match['n']}/{match['folder']}"


def _event(name: str, rank: tuple[int, int], body: dict[str, Any]) -> Event:
    if name == "restored":
        return Event(name, rank, latest=body["checkpoint"])
    if name != "checkpoint_manager_snapshot":
        return Event(name, rank)
    latest = body["latest_checkpoint_result"]
    names = tuple(entry["checkpoint_dir_name"] for entry in body["checkpoint_results"])
    return Event("manifest", rank, names, latest["checkpoint_dir_name"] if latest else None)
