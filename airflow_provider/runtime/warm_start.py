"""A generation that begins from another experiment's checkpoint: verified before each fit, given to the workers.

The parent never enters Ray's manifest. Ray would count it among the run's own checkpoints: for `num_to_keep`, for the best
score, for what it deletes. Instead each worker's train context gets it where Ray has no checkpoint to give, so that a
restart before the first commit sees it again, and the first commit replaces it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider.core.errors import InvalidConfig, NoParentCheckpoint
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.parent import verify_parent
from airflow_provider.core.record_parts import CheckpointFile, ParentCheckpoint
from airflow_provider.runtime.recorder import ETAGS_PER_CHECKPOINT
from airflow_provider.runtime.restoring import Resolved
from airflow_provider.runtime.storage import open_store, split_uri

if TYPE_CHECKING:
    import pyarrow.fs as pafs
    from ray.train import Checkpoint


def from_parent(spec: JobSpec, resolved: Resolved) -> Resolved:
    """The same restore point with the parent, where nothing of the generation is committed.

    Raises NoParentCheckpoint when the parent is not what it was when the claim was made: before any worker starts.
    """
    decided = spec.warm_start
    if resolved.checkpoint is not None or decided is None:
        return resolved
    if decided.parent is None:
        return replace(resolved, point=replace(resolved.point, reason=f"{resolved.point.reason}; {decided.reason}"))
    verdict = verify_parent(decided.parent, _files(spec, decided.parent))
    if not verdict.is_usable:
        raise NoParentCheckpoint(
            f"The parent {decided.parent.uri} of this warm start can't be used any more",
            known=f"{verdict.why}, since attempt {spec.ref} was claimed",
            change="bring its objects back, or clear the task with on_clear='fresh' to choose a parent anew",
        )
    point = replace(resolved.point, reason=f"{decided.reason}; {resolved.point.why_nothing}")
    return replace(resolved, point=point, parent=decided.parent.uri)


def _files(spec: JobSpec, parent: ParentCheckpoint) -> list[CheckpointFile]:
    store = open_store(parent.uri, spec.storage)
    files = store.files("")
    return list(store.with_etags("", files, limit=ETAGS_PER_CHECKPOINT))


def parent_checkpoint(spec: JobSpec, *, filesystem: pafs.FileSystem) -> Checkpoint | None:
    """The parent as Ray's value, read through the attempt's filesystem: that one deletes nothing outside its generation."""
    parent = spec.warm_start.parent if spec.warm_start else None
    if parent is None:
        return None
    from ray.train import Checkpoint

    return Checkpoint(path=split_uri(parent.uri)[1], filesystem=filesystem)


def check_seams() -> None:
    """Raise InvalidConfig where this Ray lacks what `give_parent` hangs on: in the driver, before any worker is started."""
    try:
        from ray.train.v2._internal.execution.callback import WorkerCallback
        from ray.train.v2._internal.execution.context import TrainContext, get_train_context
    except ImportError as error:
        raise no_way_to_give_parent(str(error)) from error
    del get_train_context
    if not hasattr(WorkerCallback, "after_init_train_context"):
        raise no_way_to_give_parent("its worker callbacks have no after_init_train_context")
    if "checkpoint" not in getattr(TrainContext, "__dataclass_fields__", {}):
        raise no_way_to_give_parent("its train context has no checkpoint")


def give_parent(parent: Checkpoint) -> None:
    """In a worker, before the training loop: what `get_checkpoint()` answers while the run has no checkpoint of its own."""
    from ray.train.v2._internal.execution.context import get_train_context

    context = get_train_context()
    if context.checkpoint is None:
        context.checkpoint = parent


def no_way_to_give_parent(why: str) -> InvalidConfig:
    """The error for a Ray whose internals moved: training from scratch in silence is no way out."""
    return InvalidConfig(
        "This Ray gives no way to hand a warm start's parent to the training loop",
        known=why,
        change="use a Ray that the compatibility page lists, or load the parent in the loop and leave warm_start out",
    )
