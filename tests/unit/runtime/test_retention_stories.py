"""Stories of attempts whose loops go on or begin again: Ray's own CheckpointManager, our hooks and the fit loop, on a local bucket."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.train
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.training_report import _TrainingReport

from airflow_provider.core import layout
from airflow_provider.core.errors import RayJobFailed
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.manifest import parse_manifest
from airflow_provider.core.records import OutcomeState
from airflow_provider.core.spec import FailureConfig
from airflow_provider.runtime import held_deletions
from airflow_provider.runtime.fencing import AttemptStorageContext, Fence, FencedLocalFileSystem
from airflow_provider.runtime.fit_loop import FitLoop
from airflow_provider.runtime.reporting import ControllerEvents
from airflow_provider.runtime.restoring import Resolved
from tests.support.fit_world import Killed, World

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray calls deprecated parts of pydantic


class Told(BaseException):
    """The driver saw the fall and ends."""


@dataclass
class Story:
    """What is true of each checkpoint, beside what the metrics say."""

    world: World
    config: dict[str, Any]
    noise: dict[str, Any]
    """Metrics of a report that says nothing of the progress."""
    epochs: dict[str, int] = field(default_factory=dict)
    fallen: set[str] = field(default_factory=set)
    untold: bool = False
    """A fall of workers that Ray started again, or of a refit, which no driver told: a documented limit."""

    @property
    def best(self) -> str | None:
        good = [n for n in self.epochs if n not in self.fallen]
        return max(good, key=lambda n: self.epochs[n], default=None)

    def committed(self, name: str, epoch: int, *, parent: str | None) -> bool:
        """Note a commit; whether it fell."""
        fell = parent is not None and parent not in self.fallen and epoch < self.epochs[parent]
        if fell or parent in self.fallen:
            self.fallen.add(name)
        self.epochs[name] = epoch
        return fell

    def check_start(self, name: str | None) -> None:
        """The next workers begin from a checkpoint that is as good as the best."""
        if self.best is None or self.untold:
            return
        assert name is not None, f"from the start, though {self.best} is there"
        assert name not in self.fallen, f"{name} had begun again, {self.best} is there"
        assert self.epochs[name] == self.epochs[self.best]

    def check_kept(self) -> None:
        """The best is in the store, or a copy of it."""
        if self.best is None or self.untold:
            return
        good = {n for n, epoch in self.epochs.items() if n not in self.fallen and epoch == self.epochs[self.best]}
        there = {
            layout.copied_from(folder) or f"attempts/{attempt}/{folder}"
            for attempt in self.world.store.folders("g000001/attempts")
            for folder in self.world.store.folders(f"g000001/attempts/{attempt}")
        }
        assert good & there, f"{self.best} is gone"


@dataclass
class RayStory:
    """Ray of one attempt: its checkpoint manager, then our hooks, by the steps of the story."""

    story: Story
    loop: FitLoop
    steps: list[str]
    ignores: bool
    """Whether its training loop begins at epoch 0 whatever it could restore."""
    is_fenced = has_own_manifest = True

    def fit(self, start: Resolved, *, fit: int) -> None:
        line = start.checkpoint and (layout.copied_from(start.checkpoint) or start.checkpoint)
        self.story.check_start(line)
        held_deletions._HELD.clear()  # another process
        asyncio.run(self._run(line))

    async def _run(self, line: str | None) -> None:
        story, ref, root = self.story, self.loop.spec.ref, self.story.world.root / "bucket"
        storage = AttemptStorageContext(FencedLocalFileSystem(Fence(str(root), ref)))
        manager = CheckpointManager(ray.train.CheckpointConfig(**story.config), storage)
        events = ControllerEvents(
            self.loop.scribe.events.path,
            run_folder=str(root / "g000001"),
            failure_config=FailureConfig(),
            storage=storage,
            progress_metric="epoch",
        )
        events.after_controller_start(SimpleNamespace(run_id="r"))
        self.steps.insert(0, "restart")
        epoch = 0
        while self.steps:
            step = self.steps.pop(0)
            if step == "restart":
                events.after_worker_group_start(None)
                epoch = 0 if self.ignores or line is None else story.epochs[line] + 1
            elif step == "node":
                raise NODE_DIED
            elif step == "driver":
                raise Killed
            else:
                is_noise = step == "noise" and not self.ignores
                metrics = story.noise if is_noise else {"epoch": epoch}
                name = f"attempts/{ref.attempt:06d}/c{len(story.epochs)}"
                folder = root / "g000001" / name
                folder.mkdir(parents=True)
                (folder / "w").write_text(str(epoch))
                checkpoint = ray.train.Checkpoint(str(folder), storage.storage_filesystem)
                report = _TrainingReport(checkpoint, metrics, None)
                is_first = not any(layout.is_of(ref.attempt, n) for n in story.epochs)
                fell = story.committed(name, epoch, parent=line)
                manager.after_report(training_report=report, metrics=[metrics])
                if step == "controller":  # its hooks never run
                    story.untold |= fell and not is_first
                    raise NODE_DIED
                story.untold |= fell and not is_first and step == "untold"
                events.after_report(training_report=report, metrics=[metrics])
                story.check_kept()
                line, epoch = name, epoch + 1
                if step != "untold":
                    self.loop.scribe.settle()


NODE_DIED = RayJobFailed("a node died", failure=Failure(kind=FailureKind.INFRASTRUCTURE, reason="a node died"))
STEPS = st.sampled_from(["commit", "commit", "commit", "untold", "noise", "controller", "restart", "node", "driver"])
ATTEMPTS = st.lists(st.tuples(st.booleans(), st.lists(STEPS, max_size=8)), min_size=1, max_size=4)
CONFIGS = [{"num_to_keep": 1}, {"num_to_keep": 2}, {}]
NOISE = [{"epoch": float("nan")}, {}, {"epoch": "3"}, {"epoch": True}, {"epoch": 10**400}]


@pytest.mark.timeout(300)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
@given(attempts=ATTEMPTS, config=st.sampled_from(CONFIGS), noise=st.sampled_from(NOISE))
def test_the_best_is_kept_and_gone_on_from_and_a_healthy_end_keeps_no_more(
    attempts: list[tuple[bool, list[str]]], config: dict[str, Any], noise: dict[str, Any]
) -> None:
    """G8: until something as good is committed behind it; and num_to_keep holds once a healthy loop trains on."""
    with tempfile.TemporaryDirectory() as root:
        world = World(Path(root))
        story = Story(world, config, noise)
        for n, (ignores, steps) in enumerate([*attempts, (False, ["commit"] * 4)], 1):
            loop, _ = world.attempt(n, max_refits=3)
            loop.training = RayStory(story, loop, list(steps), ignores)
            run_as_a_driver(loop)
            story.check_kept()
        key = layout.manifest(1, n)
        listed = parse_manifest(world.store.read(key) or b"", key=key).names
        own = {f"attempts/{n:06d}/{f}" for f in world.store.folders(f"g000001/attempts/{n:06d}") if f != "records"}
        assert story.untold or own == {name for name in listed if layout.is_of(n, name)}
        assert len(listed) <= config.get("num_to_keep", 100)


def run_as_a_driver(loop: FitLoop) -> None:
    """Its end in each of the ways that a story knows."""
    fatal: list[Failure] = []

    def tell(failure: Failure) -> None:
        fatal.append(failure)
        raise Told

    loop.scribe.on_fatal = tell
    try:
        failure = loop.run()
    except Killed:
        return
    except Told:
        failure = fatal[0]
    if failure is not None:
        loop.scribe.on_fatal = fatal.append
        loop.ending.write_outcome(OutcomeState.FAILED, failure, for_s=1)
        loop.scribe.settle()
