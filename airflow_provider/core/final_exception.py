"""The exception that ended a program, out of the text it left: a job's message, a log tail, or an error that quotes a traceback.

Only the final traceback counts. Lines of workers (`(RayTrainWorker pid=1) ...`) are other processes' and are passed
over; after a wrapper such as `WorkerGroupError` the exceptions that follow are the ranks' own.
"""

from __future__ import annotations

import re

from airflow_provider.core.failure_rules import SeenError

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_PREFIXED = re.compile(r"^\([\w.]+(?:\([^)]*\))? pid=\d+[^)]*\) ?")
_RANK = re.compile(r"^\s*\[Rank (\d+)\b[^\]]*\]")
_EXCEPTION = re.compile(
    r"^(?P<name>[A-Za-z_][\w.]*?(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Expired|Refused|Unreachable|Config|Superseded)"
    r"(?:\([\w.]+\))?)(?::\s*(?P<message>.*))?$"
)
_WRAPPERS = frozenset(
    {
        "WorkerGroupError",
        "ControllerError",
        "TrainingFailedError",
        "RayTaskError",
        "TuneError",
        "WorkerHealthCheckFailedError",
    }
)
_DIRECT_CAUSE = "direct cause of the following exception"
_MAX_LINES = 400


def clean(text: str) -> str:
    """Text without terminal codes; of a line that was redrawn with carriage returns, the last state."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in _ANSI.sub("", text).split("\n"))
    return "\n".join(lines)


def is_wrapper(name: str) -> bool:
    """Whether an exception class only carries others, so that its own text is not what happened."""
    return name.rpartition(".")[2].partition("(")[0] in _WRAPPERS


def final_chains(text: str) -> list[tuple[int | None, tuple[SeenError, ...]]]:
    """(rank, errors from raised to root) per failed rank of the final exception; empty if there is none."""
    # Runs on any log text: a bounded number of lines, each matched once from its start.
    lines = [line for line in clean(text).split("\n") if not _PREFIXED.match(line)][-_MAX_LINES:]
    found = _exceptions(lines)
    if not found:
        return []
    wrapper = max((i for i, (_, _, seen, _) in enumerate(found) if is_wrapper(seen.name)), default=None)
    if wrapper is None:
        ranked = [(rank, seen) for _, rank, seen, _ in found if rank is not None]
        if ranked:
            return [(rank, (seen,)) for rank, seen in ranked]
        return [(None, _chain(found))]
    inner: list[tuple[int | None, tuple[SeenError, ...]]] = [
        (rank, (seen,)) for _, rank, seen, _ in found[wrapper + 1 :]
    ]
    if inner:
        # Without rank marks the last one is final: a traceback of several steps was quoted.
        return [(rank, errors) for rank, errors in inner if rank is not None] or inner[-1:]
    if found[wrapper][3] and wrapper > 0:
        return [(None, (found[wrapper - 1][2],))]
    return [(None, (found[wrapper][2],))]


def _exceptions(lines: list[str]) -> list[tuple[int, int | None, SeenError, bool]]:
    """(line, rank, error, whether its explicit cause is the one before) of each exception line."""
    found: list[tuple[int, int | None, SeenError, bool]] = []
    rank: int | None = None
    has_cause = False
    for number, line in enumerate(lines):
        if mark := _RANK.match(line):
            rank = int(mark[1])
        elif _DIRECT_CAUSE in line:
            has_cause = True
        elif match := _EXCEPTION.match(line.strip() if rank is not None else line):
            message = _with_continuation(match["message"] or "", lines[number + 1 :])
            found.append((number, rank, SeenError(match["name"], message), has_cause))
            has_cause = False
    return found


def _with_continuation(message: str, following: list[str]) -> str:
    """A message may go on for some lines; the causes of a lost actor stand there."""
    more: list[str] = []
    for line in following[:12]:
        if not line.strip() or line.startswith(("Traceback ", "  File ", "During handling", "The above")):
            break
        if _RANK.match(line) or _EXCEPTION.match(line):
            break
        more.append(line.strip())
    return "\n".join([message, *more])


def _chain(found: list[tuple[int, int | None, SeenError, bool]]) -> tuple[SeenError, ...]:
    """The last exception and, outwards in, those that it names as its direct cause."""
    errors = [found[-1][2]]
    for index in range(len(found) - 1, 0, -1):
        if not found[index][3]:
            break
        errors.append(found[index - 1][2])
    return tuple(errors)
