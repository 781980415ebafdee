"""A Ray Train V1 run directory, read from a listing and its small files: which checkpoints, and can Ray restore it.

V1 keeps its checkpoints one level down in the trial's directory, numbered, and writes a new experiment state file after
each restore. "State present but unreadable" is an answer of its own: never "no run here", never a reason to start again
in the same directory.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from airflow_provider.core.json_input import UnreadableJson, read_json
from airflow_provider.core.record_parts import CheckpointFile

RUN_NAME = "v1"
"""V1's run directory inside the folder of the attempt that started it; later attempts restore it there."""
_INDEXED = re.compile(r"^checkpoint_([0-9]{1,18})$")
_NAMED = re.compile(r"^checkpoint_[^.]+$")
_TRIAL = re.compile(r"^[\w-]+_[0-9a-f]{5}_\d{5}(?:_|$)")
_STATE = re.compile(r"^experiment_state-.*\.json$")
_NEEDED = ("trainer.pkl", "tuner.pkl")
_RUN_OF = re.compile(rf"^(attempts/(\d{{6}})/{RUN_NAME}(?:-\d+)?)/[^/]+/checkpoint_\d+$")
_MAX_LINE = 1_000_000


class RunAnswer(str, Enum):
    """What a directory is."""

    NONE = "none"
    FOUND = "found"
    UNREADABLE = "unreadable"
    """State files or checkpoints are there, but a state file is empty or gone: Ray can't restore from it."""


@dataclass(frozen=True)
class CheckpointV1:
    """One checkpoint directory with at least one file; `name` is relative to the run directory."""

    name: str
    index: int
    files: tuple[CheckpointFile, ...] = ()


@dataclass(frozen=True)
class RunV1:
    """What a V1 run directory holds."""

    answer: RunAnswer
    checkpoints: tuple[CheckpointV1, ...] = ()
    """Numbered ones in numeric order, so the last is the newest."""
    named: tuple[str, ...] = ()
    """`checkpoint_final` and the like: shown, never chosen by number."""
    empty: tuple[str, ...] = ()
    """Markers of directories that hold no file any more."""
    trials: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    """Experiment state files, oldest first: each restore adds one."""
    why_unreadable: str = ""

    @property
    def latest(self) -> CheckpointV1 | None:
        """The newest checkpoint on disk, committed or not."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def newest_state(self) -> str | None:
        """The state file that Ray's restore reads."""
        return self.states[-1] if self.states else None


@dataclass
class _Folders:
    files: dict[str, list[CheckpointFile]] = field(default_factory=dict)
    markers: set[str] = field(default_factory=set)
    top: dict[str, int] = field(default_factory=dict)
    trials: set[str] = field(default_factory=set)


def parse_run(listing: Iterable[CheckpointFile]) -> RunV1:
    """Read a listing whose keys are relative to the run directory. Checkpoints directly in it are accepted too."""
    found = _sort_into_folders(listing)
    indexed = sorted(
        (
            CheckpointV1(name, int(match[1]), tuple(files))
            for name, files in found.files.items()
            if (match := _index_of(name))
        ),
        key=lambda c: (c.index, c.name),
    )
    named = sorted(name for name in found.files if not _index_of(name) and _NAMED.match(name.rpartition("/")[2]))
    states = sorted(name for name in found.top if _STATE.match(name))
    has_state = bool(states) or any(name in found.top for name in _NEEDED)
    why = _why_unreadable(found.top, states) if has_state else ""
    answer = RunAnswer.UNREADABLE if why else RunAnswer.FOUND if has_state or indexed or named else RunAnswer.NONE
    return RunV1(
        answer=answer,
        checkpoints=tuple(indexed),
        named=tuple(named),
        empty=tuple(sorted(found.markers - found.files.keys())),
        trials=tuple(sorted(found.trials)),
        states=tuple(states),
        why_unreadable=why,
    )


def _sort_into_folders(listing: Iterable[CheckpointFile]) -> _Folders:
    found = _Folders()
    for file in listing:
        parts = file.key.split("/")
        if len(parts) == 1:
            # A 0-byte `checkpoint_000002` beside a folder of that name is some tool's marker: a plain file is no checkpoint.
            found.top[file.key] = file.size
            continue
        depth = 1 if _TRIAL.match(parts[0]) else 0
        if depth:
            found.trials.add(parts[0])
        if len(parts) <= depth + 1 or not parts[depth].startswith("checkpoint_"):
            continue
        name = "/".join(parts[: depth + 1])
        inner = "/".join(parts[depth + 1 :])
        if not inner:
            found.markers.add(name)
        elif not inner.endswith("/"):
            found.files.setdefault(name, []).append(replace(file, key=inner))
    return found


def _index_of(name: str) -> re.Match[str] | None:
    return _INDEXED.match(name.rpartition("/")[2])


def _why_unreadable(top: Mapping[str, int], states: list[str]) -> str:
    for name in _NEEDED:
        if name not in top:
            return f"{name} is missing"
        if top[name] == 0:
            return f"{name} has 0 bytes"
    if not states:
        return "no experiment state was written yet"
    if top[states[-1]] == 0:
        return f"{states[-1]} has 0 bytes"
    return ""


# --- small files -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReportV1:
    """One line of `result.json`: metrics, and the checkpoint directory reported with them."""

    checkpoint: str | None
    metrics: dict[str, Any]


def parse_results(body: bytes) -> list[ReportV1]:
    """The reports of a trial. A torn last line is left out; after a restore, lines of a repeated step come again."""
    found: list[ReportV1] = []
    for line in body.splitlines():
        try:
            data = read_json(line[:_MAX_LINE])
        except UnreadableJson:
            continue
        if isinstance(data, dict):
            name = data.get("checkpoint_dir_name")
            found.append(ReportV1(name if isinstance(name, str) else None, own_metrics(data)))
    return found


_TUNES_OWN = frozenset(
    [
        "timestamp",
        "checkpoint_dir_name",
        "should_checkpoint",
        "done",
        "trial_id",
        "date",
        "time_this_iter_s",
        "time_total_s",
        "pid",
        "hostname",
        "node_ip",
        "config",
        "time_since_restore",
        "iterations_since_restore",
        "experiment_tag",
        "experiment_id",
        "timesteps_total",
        "episodes_total",
    ]
)


def own_metrics(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without what Tune adds: host names, and the whole train loop config, which may hold a secret."""
    return {key: value for key, value in result.items() if key not in _TUNES_OWN}


def state_checkpoint(body: bytes) -> str | None:
    """Name of the newest checkpoint that an experiment state knows: the one that Ray's `restore` would take.

    The state lags by up to ten seconds behind the checkpoints (more with many files), and Ray's restore then trains
    what it doesn't know again. The checkpoint manager is pickled inside; its names are read as bytes, so that nothing
    of it is executed. None: unreadable, or no checkpoint yet.
    """
    try:
        trials = read_json(body)["trial_data"]
        found = [_newest_name(read_json(trial[1])) for trial in trials]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None
    return max((name for name in found if name), key=_number, default=None)


def _newest_name(metadata: Mapping[str, Any]) -> str | None:
    pickled = binascii.unhexlify(metadata["checkpoint_manager"]["value"])
    names = {match.decode() for match in re.findall(rb"checkpoint_\d{6,18}(?![\w.])", pickled)}
    return max(names, key=_number, default=None)


def _number(name: str) -> int:
    return int(name.rpartition("_")[2])


# --- what an attempt does --------------------------------------------------------------------------------------------


class ModeV1(str, Enum):
    """How an attempt begins on V1."""

    START = "start"
    RESTORE = "restore"
    """`Trainer.restore(path)`: the same run directory goes on."""
    RESUME = "resume"
    """`resume_from_checkpoint` in a run directory of its own."""


@dataclass(frozen=True)
class PlanV1:
    """How an attempt begins, where (relative to the generation folder), and why."""

    mode: ModeV1
    run_dir: str
    checkpoint: str | None
    reason: str


def run_dir(attempt: int, fit: int = 1) -> str:
    """Run directory that fit `fit` of an attempt starts, relative to the generation folder."""
    name = RUN_NAME if fit == 1 else f"{RUN_NAME}-{fit}"
    return f"attempts/{attempt:06d}/{name}"


def run_of(checkpoint: str) -> str | None:
    """The V1 run directory a checkpoint lies in (both relative to the generation folder), or None."""
    match = _RUN_OF.match(checkpoint)
    return match[1] if match else None


def starter_of(checkpoint: str) -> int | None:
    """The attempt that started the run directory a checkpoint lies in, or None."""
    match = _RUN_OF.match(checkpoint)
    return int(match[2]) if match else None


def plan_run(
    *, checkpoint: str | None, run: RunV1 | None, state: str | None, is_same_spec: bool, new_run_dir: str
) -> PlanV1:
    """Restore the run directory where Ray would really continue from `checkpoint`, else resume in a new one.

    `run` is the directory that holds the checkpoint (None: it lies in none of V1's), `state` the checkpoint its newest
    experiment state knows. Ray's `restore` takes the newest one it knows and ignores a new `train_loop_config`.
    """
    if checkpoint is None:
        return PlanV1(ModeV1.START, new_run_dir, None, "from the start: no committed checkpoint")
    own = run_of(checkpoint)
    why = _why_not_restore(own, run, state, checkpoint, is_same_spec=is_same_spec)
    if why or own is None:
        return PlanV1(ModeV1.RESUME, new_run_dir, checkpoint, f"resume_from_checkpoint in {new_run_dir}: {why}")
    return PlanV1(ModeV1.RESTORE, own, checkpoint, f"restore of {own}, whose state is at {state}")


def _why_not_restore(
    own: str | None, run: RunV1 | None, state: str | None, checkpoint: str, *, is_same_spec: bool
) -> str:
    wanted = checkpoint.rpartition("/")[2]
    if own is None or run is None or run.answer is RunAnswer.NONE:
        return "the restore point lies in no V1 run directory"
    if run.answer is RunAnswer.UNREADABLE:
        return f"{own} can't be restored, {run.why_unreadable}"
    if not is_same_spec:
        return "the request changed, and restore ignores a new train_loop_config"
    if len(run.trials) != 1:
        return f"{own} has {len(run.trials)} trials"
    if state != wanted:
        return f"restore would go on from {state or 'the start'}, not from {wanted}"
    return ""
