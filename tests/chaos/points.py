"""The moments at which a fault strikes, each told by one request that a gate sees. Exact, not guessed by a clock."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tests.stack.gate import Hold

if TYPE_CHECKING:
    from tests.stack.gate import Seen

_CLAIM = re.compile(r"/claim\.json$")
_MANIFEST = re.compile(r"/attempts/\d{6}/checkpoint_manager_snapshot\.json$")
_CHECKPOINT_FILE = re.compile(r"/attempts/\d{6}/checkpoint_(?!manager_snapshot)[^/]+/.")
"""Not the folder's own marker, which comes first: one file each makes uploads count like commits."""
_OUTCOME = re.compile(r"/outcome\.json$")
_COMMITS_BEFORE = 2
"""Commits that pass before a fault strikes a training."""


def is_write(seen: Seen) -> bool:
    """Whether the request makes an object appear: a PUT, or the end of an upload in parts."""
    query = seen.target.partition("?")[2]
    return (seen.method == "PUT" and "partNumber=" not in query) or (seen.method == "POST" and "uploadId=" in query)


def is_deletion(seen: Seen) -> bool:
    """Whether the request makes objects go: one, or a list of them in the body. An upload that is given up has made none."""
    query = seen.target.partition("?")[2]
    is_list = seen.method == "POST" and query.partition("=")[0] == "delete"
    return is_list or (seen.method == "DELETE" and "uploadId=" not in query)


def path_of(seen: Seen) -> str:
    """The request's path without its query."""
    return seen.target.partition("?")[0]


def _writes(pattern: re.Pattern[str]) -> Callable[[Seen], bool]:
    return lambda seen: is_write(seen) and pattern.search(path_of(seen)) is not None


def _posts_job(seen: Seen) -> bool:
    return seen.method == "POST" and path_of(seen) == "/api/jobs/"


class Point(str, Enum):
    """Where in the life of a training."""

    BEFORE_CLAIM = "before claim"
    AFTER_CLAIM = "after claim"
    AFTER_POST = "after POST"
    TRAINING = "while training"
    UPLOAD = "during upload"
    BEFORE_COMMIT = "between upload and commit"
    MANIFEST_WRITE = "during manifest write"
    END = "at the end"


@dataclass(frozen=True)
class Trigger:
    """The request that tells a point: which gate sees it, and whether it is held before the server or before its answer."""

    gate: str
    matches: Callable[[Seen], bool]
    is_before: bool
    skip: int = 0
    is_held: bool = True
    """False: the fault comes beside the request, which goes on."""

    def hold(self, action: Callable[[Seen], None]) -> Hold:
        """A hold that does `action` at this point."""
        return Hold(self.matches, action, is_before=self.is_before, skip=self.skip)


# The first manifest of an attempt is the one it starts with; each later one is a commit.
TRIGGERS: dict[Point, Trigger] = {
    Point.BEFORE_CLAIM: Trigger("s3", _writes(_CLAIM), is_before=True),
    Point.AFTER_CLAIM: Trigger("s3", _writes(_CLAIM), is_before=False),
    Point.AFTER_POST: Trigger("ray", _posts_job, is_before=False),
    Point.TRAINING: Trigger("s3", _writes(_MANIFEST), is_before=False, skip=_COMMITS_BEFORE, is_held=False),
    Point.UPLOAD: Trigger("s3", _writes(_CHECKPOINT_FILE), is_before=True, skip=_COMMITS_BEFORE),
    Point.BEFORE_COMMIT: Trigger("s3", _writes(_MANIFEST), is_before=True, skip=_COMMITS_BEFORE + 1),
    Point.MANIFEST_WRITE: Trigger("s3", _writes(_MANIFEST), is_before=False, skip=_COMMITS_BEFORE + 1),
    Point.END: Trigger("s3", _writes(_OUTCOME), is_before=True),
}
MANIFEST_PATH = _MANIFEST
