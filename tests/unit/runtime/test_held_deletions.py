"""Retention waits for the proof of a restore: Ray's own CheckpointManager over our fence, and our hooks behind it."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.train
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.training_report import _TrainingReport

from airflow_provider.core import layout
from airflow_provider.core.manifest import Manifest, ManifestEntry, parse_manifest
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.spec import FailureConfig
from airflow_provider.runtime import held_deletions
from airflow_provider.runtime.events import EventReader
from airflow_provider.runtime.fencing import AttemptStorageContext, Fence, FencedLocalFileSystem
from airflow_provider.runtime.reporting import ControllerEvents

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray calls deprecated parts of pydantic

REF = AttemptRef(generation=1, attempt=2)
A1, A2 = "attempts/000001", "attempts/000002"


@pytest.fixture(autouse=True)
def _one_process() -> Iterator[None]:
    """Each controller is a process of its own, which holds nothing yet."""
    held_deletions._HELD.clear()
    yield
    held_deletions._HELD.clear()


class Controller:
    """What Ray's controller does with reports: its checkpoint manager first, our hooks after it."""

    def __init__(self, root: Path, *, metric: str | None, is_fenced: bool, **config: Any) -> None:
        self.root = root
        self.storage = AttemptStorageContext(FencedLocalFileSystem(Fence(str(root), REF)))
        self.manager = CheckpointManager(ray.train.CheckpointConfig(**config), self.storage)
        self.events = ControllerEvents(
            str(root / "events"),
            run_folder=str(root / "g000001"),
            failure_config=FailureConfig(),
            storage=pickle.loads(pickle.dumps(self.storage)) if is_fenced else None,  # noqa: S301 our own
            progress_metric=metric,
        )
        self.events.after_controller_start(SimpleNamespace(run_id="r"))
        self.start_workers()

    def start_workers(self) -> None:
        self.events.after_worker_group_start(None)

    def report(self, name: str | None, **metrics: Any) -> None:
        """Of a worker, whose checkpoint comes with a filesystem of its own."""
        checkpoint = None
        if name is not None:
            folder = self.root / "g000001" / A2 / name
            folder.mkdir(parents=True)
            filesystem = pickle.loads(pickle.dumps(self.storage.storage_filesystem))  # noqa: S301 our own
            checkpoint = ray.train.Checkpoint(str(folder), filesystem)
        report = _TrainingReport(checkpoint, metrics, None)
        self.manager.after_report(training_report=report, metrics=[metrics])
        self.events.after_report(training_report=report, metrics=[metrics])

    @property
    def listed(self) -> list[str]:
        key = layout.manifest(*REF.rank)
        return list(parse_manifest((self.root / key).read_bytes(), key=key).names)

    def there(self, *names: str) -> list[str]:
        return [name for name in names if (self.root / "g000001" / name).is_dir()]


def tell(root: Path, story: Callable[[Controller], None], *restored: int | None, **config: Any) -> Controller:
    """A controller whose manifest lists checkpoints `c<epoch>` of the attempt before, the last one restored."""
    entries = tuple(ManifestEntry(f"{A1}/c{e}", {"epoch": e}) for e in restored)
    for entry in entries:
        (root / "g000001" / entry.name).mkdir(parents=True)
    path = root / layout.manifest(*REF.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    latest = entries[-1] if entries else None
    path.write_bytes(Manifest(entries, latest, tuple(range(len(entries)))).body(ray_version=ray.__version__))
    settings = {"metric": "epoch", "is_fenced": True, "num_to_keep": 1} | config

    async def run() -> Controller:
        controller = Controller(root, **settings)
        story(controller)
        return controller

    return asyncio.run(run())


def test_a_loop_that_began_again_deletes_nothing(tmp_path: Path) -> None:
    """G8: with num_to_keep=1 its first report replaces the checkpoint that it ignored, before anybody can judge it."""

    def story(controller: Controller) -> None:
        controller.report("c0", epoch=0)
        controller.report("c1", epoch=1)  # the driver needs a moment to end the job
        controller.start_workers()
        controller.report("c2", epoch=2)

    controller = tell(tmp_path, story, 4)
    assert controller.listed == [f"{A2}/c2"], "Ray dropped them all, so only the hold kept them"
    assert controller.there(f"{A1}/c4", f"{A2}/c0", f"{A2}/c1") == [f"{A1}/c4", f"{A2}/c0", f"{A2}/c1"]


@pytest.mark.parametrize(
    ("restored", "reported", "metric"),
    [
        ((4,), {"epoch": 5}, "epoch"),
        ((4,), {"epoch": 0}, None),
        ((4,), {"epoch": 0}, "not reported"),
        ((4,), {"loss": 0.1}, "epoch"),
        ((4,), {"loss": 0.1}, None),
    ],
    ids=["went on", "only guessed", "misspelt", "not in the report", "no metric"],
)
def test_what_is_no_fall_is_deleted_at_the_first_report(
    tmp_path: Path, restored: tuple[int, ...], reported: dict[str, Any], metric: str | None
) -> None:
    """num_to_keep is a promise about space: it waits no longer than it must."""
    controller = tell(tmp_path, lambda c: c.report("new", **reported), *restored, metric=metric)
    assert controller.there(f"{A1}/c4", f"{A2}/new") == [f"{A2}/new"]


def test_once_proven_retention_is_rays(tmp_path: Path) -> None:
    def story(controller: Controller) -> None:
        for epoch in (5, 6, 7):
            controller.report(f"c{epoch}", epoch=epoch)
            assert controller.there(f"{A1}/c4", *(f"{A2}/c{e}" for e in (5, 6, 7))) == [f"{A2}/c{epoch}"]

    tell(tmp_path, story, 4)


def test_from_scratch_nothing_waits(tmp_path: Path) -> None:
    """A warm start looks the same: its parent is in no manifest of ours."""

    def story(controller: Controller) -> None:
        controller.report("c0", epoch=5)
        controller.report("c1", epoch=1)

    assert tell(tmp_path, story).there(f"{A2}/c0", f"{A2}/c1") == [f"{A2}/c1"]


def test_a_first_report_without_a_checkpoint_is_judged_too(tmp_path: Path) -> None:
    def story(controller: Controller) -> None:
        controller.report(None, epoch=0)
        controller.report("c9", epoch=9)

    assert tell(tmp_path, story, 4).there(f"{A1}/c4") == [f"{A1}/c4"]


def test_workers_that_ray_started_again_are_judged_by_the_newest_commit(tmp_path: Path) -> None:
    """Ray's own recovery restores as well: what was last committed, by this attempt or an earlier one."""

    def story(controller: Controller) -> None:
        controller.report("c5", epoch=5)
        controller.report("c6", epoch=6)
        assert controller.there(f"{A1}/c4", f"{A2}/c5", f"{A2}/c6") == [f"{A2}/c6"]
        controller.start_workers()
        controller.report("c7", epoch=7)
        assert controller.there(f"{A2}/c6", f"{A2}/c7") == [f"{A2}/c7"]
        controller.start_workers()
        controller.start_workers()  # they died before they reported
        controller.report("c0", epoch=0)

    assert tell(tmp_path, story, 4).there(f"{A2}/c7", f"{A2}/c0") == [f"{A2}/c7", f"{A2}/c0"]


def test_all_that_a_fallen_report_pushes_out_stays(tmp_path: Path) -> None:
    """Not only the restore point: with more to keep it pushes out an older one, with a score the one that scores worst."""
    controller = tell(tmp_path / "newest", lambda c: c.report("c0", epoch=0), 3, 4, num_to_keep=2)
    assert controller.listed == [f"{A1}/c4", f"{A2}/c0"]
    assert controller.there(f"{A1}/c3", f"{A1}/c4") == [f"{A1}/c3", f"{A1}/c4"]
    score = {"checkpoint_score_attribute": "epoch", "checkpoint_score_order": "min"}
    controller = tell(tmp_path / "best", lambda c: c.report("c0", epoch=0), 4, **score)
    assert controller.listed == [f"{A2}/c0"]
    assert controller.there(f"{A1}/c4") == [f"{A1}/c4"]


def test_what_was_held_back_goes_through_the_fence(tmp_path: Path) -> None:
    """G12: a controller that froze between the two deletes nothing once there is a newer claim; Ray goes on."""

    def story(controller: Controller) -> None:
        first_report = controller.events.after_report

        def superseded(**report: Any) -> None:
            claim = tmp_path / layout.claim(1, 3)
            claim.parent.mkdir(parents=True)
            claim.write_text("{}")
            first_report(**report)

        controller.events.after_report = superseded  # type: ignore[method-assign]
        controller.report("c5", epoch=5)

    assert tell(tmp_path, story, 4).there(f"{A1}/c4") == [f"{A1}/c4"]


def test_a_commit_is_told_before_anything_is_deleted(tmp_path: Path) -> None:
    """Deleting waits for the store, and a controller may die in it: the driver knows of the commit by then."""
    told: list[list[str]] = []

    def story(controller: Controller) -> None:
        def delete() -> None:
            told.append([type(event).__name__ for event in EventReader(str(tmp_path / "events")).read_new()][-2:])

        held_deletions.is_held(Fence(str(tmp_path), REF), delete)
        controller.report("c5", epoch=5)

    tell(tmp_path, story, 4)
    assert told == [["ReportEvent", "CommitEvent"]]


def test_where_it_is_not_known_what_was_restored_nothing_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was away for that one read: too much is kept rather than too little, and training goes on."""

    def away(self: AttemptStorageContext) -> None:
        raise OSError("away")

    monkeypatch.setattr(AttemptStorageContext, "restored_metrics", away)

    def story(controller: Controller) -> None:
        controller.report("c5", epoch=5)
        controller.report("c6", epoch=6)

    assert tell(tmp_path, story, 4).there(f"{A1}/c4", f"{A2}/c5") == [f"{A1}/c4", f"{A2}/c5"]


@pytest.mark.parametrize(("num_away", "left"), [(1, []), (2, [f"{A1}/c4", f"{A2}/c5"])])
def test_what_was_restored_is_asked_for_again_at_the_next_start_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_away: int, left: list[str]
) -> None:
    """One read that failed must not end retention for days; what nobody could judge by then stays."""
    asked, real = [0], AttemptStorageContext.restored_metrics

    def away(self: AttemptStorageContext) -> dict[str, Any] | None:
        asked[0] += 1
        if asked[0] <= num_away:
            raise OSError("away")
        return real(self)

    monkeypatch.setattr(AttemptStorageContext, "restored_metrics", away)

    def story(controller: Controller) -> None:
        controller.report("c5", epoch=5)
        controller.report("c6", epoch=6)
        controller.start_workers()
        controller.report("c7", epoch=7)
        controller.report("c8", epoch=8)

    there = [f"{A1}/c4", *(f"{A2}/c{epoch}" for epoch in (5, 6, 7, 8))]
    assert tell(tmp_path, story, 4).there(*there) == [*left, f"{A2}/c8"]
    assert asked == [num_away + 1], "known once, it is not asked for again"


def test_without_the_fence_nothing_is_held(tmp_path: Path) -> None:
    """Ray's plain run directory has no filesystem of ours to hold anything back: a documented limit."""
    assert tell(tmp_path, lambda c: c.report("c0", epoch=0), 4, is_fenced=False).there(f"{A1}/c4") == []
