"""A warm start's parent: what lies at the place that was named, and what follows. Pure.

The caller reads: it asks `read_source` what is meant, lists what is there, and hands each look to
`conclude_warm_start`, whose reason goes to the task log, the claim and the lineage.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from airflow_provider.core import layout
from airflow_provider.core.errors import ForeignLayout, NoParentCheckpoint
from airflow_provider.core.record_parts import CheckpointFile, ParentCheckpoint, WarmStartRecord
from airflow_provider.core.strict_json import bounded_metrics

if TYPE_CHECKING:
    from airflow_provider.core.restore import Verdict

MAX_FILES = 1_000
"""Files of a parent that a claim names; of the others it knows number and size."""
_NAMED_AT_MOST = 3


# --- what lies there -------------------------------------------------------------------------------------------------


class Layout(str, Enum):
    """What a folder is."""

    EXPERIMENT = "experiment"
    """Ours: owners, generations, attempts."""
    RAY_RUN = "ray run"
    """Ray Train V2's own run directory."""
    RAY_RUN_V1 = "ray run v1"
    CHECKPOINT = "checkpoint"
    """A folder of files that nothing of another framework marks."""
    NOTHING = "nothing"


_INSIDE = re.compile(r"^(?P<root>.+)/g(?P<generation>\d{6})/(?P<name>attempts/\d{6}/.+|[^/]+)$")
_PART = re.compile(r"^(?P<root>.+)/g\d{6}(/attempts(/\d{6})?)?$")
_V1_STATE = re.compile(r"^(experiment_state-.*\.json|trainer\.pkl|tuner\.pkl)$")
_ONE_OF_MANY = re.compile(r"^checkpoint[-_]?\d+$")
_LOGS = re.compile(r"^(version_\d+|lightning_logs)$")
_FOREIGN_MARKS: Mapping[str, str] = {
    "MLmodel": "an MLflow model",
    "saved_model.pb": "a TensorFlow SavedModel",
    "trainer_state.json": "a checkpoint of Hugging Face's Trainer",
    "model.tar.gz": "a SageMaker model archive",
    "_CHECKPOINT_METADATA": "an Orbax checkpoint",
}


def inside_experiment(uri: str) -> tuple[str, int, str] | None:
    """Experiment, generation and name of a checkpoint by our layout; None for any other URI."""
    match = _INSIDE.match(uri)
    if match is None or match["name"] in layout.RECORD_FOLDERS:
        return None
    return match["root"], int(match["generation"]), match["name"]


def part_of_experiment(uri: str) -> str | None:
    """The experiment, where a URI has the form of a generation's or an attempt's folder; None otherwise."""
    match = _PART.match(uri)
    return match["root"] if match else None


def is_mark_of_run(key: str) -> bool:
    """Whether a key below a folder shows that experiments or runs of Ray lie in it: then it is no checkpoint."""
    return key.endswith((f"/{layout.owner(1)}", f"/{layout.MANIFEST}"))


def judge_layout(uri: str, *, objects: Collection[str], folders: Collection[str]) -> Layout:
    """What the folder is, from the names directly in it. Raises ForeignLayout for what is no checkpoint of Ray Train.

    A checkpoint of Ray is any folder that a worker reported, so only what is certainly something else is refused.
    """
    if "owners" in folders:
        return Layout.EXPERIMENT
    if layout.MANIFEST in objects:
        return Layout.RAY_RUN
    if any(_V1_STATE.match(name) for name in objects):
        return Layout.RAY_RUN_V1
    for name, what in _FOREIGN_MARKS.items():
        if name in objects:
            raise _foreign(uri, what, f"it holds {name}")
    if "meta.yaml" in objects and "artifacts" in folders:
        raise _foreign(uri, "an MLflow run", "it holds meta.yaml and artifacts")
    many = sorted(name for name in folders if _ONE_OF_MANY.match(name) or (_LOGS.match(name) and not objects))
    if many:
        raise _foreign(uri, "a folder of checkpoints and not one of them", f"it holds {', '.join(many[:5])}")
    return Layout.CHECKPOINT if objects or folders else Layout.NOTHING


def single_file(uri: str) -> ForeignLayout:
    """The error for a URI of one object."""
    return _foreign(uri, "a single file", "a checkpoint of Ray Train is a folder")


def folder_of_runs(uri: str, key: str) -> ForeignLayout:
    """The error for a folder that holds experiments."""
    return _foreign(uri, "a folder of experiments", f"it holds {key}")


def part_of(uri: str, experiment: str) -> ForeignLayout:
    """The error for a folder inside an experiment that is no checkpoint."""
    return _foreign(
        uri, f"a part of the experiment {experiment}", "only the experiment or one of its checkpoints is one"
    )


def _foreign(uri: str, what: str, known: str) -> ForeignLayout:
    return ForeignLayout(
        f"warm_start can't begin from {uri}: it is {what}",
        known=known,
        change="name a checkpoint that was reported with ray.train.report, or a folder laid out as the training loop reads it",
    )


# --- what follows ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Usable:
    """A verified parent, and why this one."""

    parent: ParentCheckpoint
    why: str


@dataclass(frozen=True)
class Unusable:
    """A place that was looked at and holds no usable checkpoint."""

    where: str
    why: str


Look = Usable | Unusable


def parent_of(uri: str, files: Iterable[CheckpointFile], *, metrics: Mapping[str, Any]) -> ParentCheckpoint:
    """A parent with its file list, as a claim keeps it."""
    found = sorted(files, key=lambda f: f.key)
    return ParentCheckpoint(
        uri=uri,
        files=tuple(found[:MAX_FILES]),
        num_files=len(found),
        size_bytes=sum(f.size for f in found),
        metrics=bounded_metrics(metrics)[0],
    )


def verify_parent(parent: ParentCheckpoint, found: Iterable[CheckpointFile]) -> Verdict:
    """Whether a recorded parent is still what it was when the generation began."""
    from airflow_provider.core.restore import Candidate, Verdict, verify

    files = list(found)
    verdict = verify(Candidate(parent.uri, expected=parent.files), files)
    if not verdict.is_usable or parent.num_files <= len(parent.files):
        return verdict
    count, size = len(files), sum(f.size for f in files)
    if (count, size) != (parent.num_files, parent.size_bytes):
        why = f"{count} files of {size} bytes instead of {parent.num_files} of {parent.size_bytes}"
        return Verdict(is_usable=False, why=why)
    return verdict


def conclude_warm_start(looks: Sequence[Look], *, what: str, missing: str) -> WarmStartRecord:
    """The decision, with its reason. `what` says what was asked for. Raises NoParentCheckpoint under `missing="fail"`."""
    chosen = next((look for look in looks if isinstance(look, Usable)), None)
    passed = [f"{look.where}: {look.why}" for look in looks if isinstance(look, Unusable)]
    more = f" and {len(passed) - _NAMED_AT_MOST} more" if len(passed) > _NAMED_AT_MOST else ""
    named = "; ".join(passed[:_NAMED_AT_MOST]) + more
    if chosen is not None:
        over = f"; passed over {named}" if named else ""
        return WarmStartRecord(
            parent=chosen.parent, reason=f"warm start from {chosen.parent.uri} because {chosen.why}{over}"
        )
    known = named or "nothing was there to look at"
    if missing == "fresh":
        return WarmStartRecord(
            parent=None, reason=f"no warm start from {what} ({known}): from the start, missing='fresh'"
        )
    raise NoParentCheckpoint(
        f"There is no checkpoint to warm start from: {what}",
        known=f"{known}; missing='fail' forbids to begin from the start; nothing was submitted",
        change="name another parent, bring its objects back, or write WarmStart(source=..., missing='fresh')",
    )


def conclude_again(recorded: WarmStartRecord, verdict: Verdict, *, missing: str) -> WarmStartRecord:
    """A retry without a commit of its own begins from the recorded parent again, and from no other.

    Raises NoParentCheckpoint where it is gone or changed since and `missing="fail"`.
    """
    parent = recorded.parent
    if parent is None:
        return recorded
    if verdict.is_usable:
        why = f"the generation's first claim chose it ({verdict.why})"
        return WarmStartRecord(parent=parent, reason=f"warm start from {parent.uri} because {why}")
    look = Unusable(parent.uri, f"{verdict.why}, since the generation's first claim chose it")
    return conclude_warm_start([look], what=parent.uri, missing=missing)
