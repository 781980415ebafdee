"""The fit loop over a local bucket with a stand-in for Ray: refits, fallbacks, outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider.core import layout
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.job import EXIT_SUPERSEDED
from airflow_provider.core.manifest import Manifest, parse_manifest
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import OutcomeState, RestoredRecord
from airflow_provider.core.spec import CheckpointConfig
from airflow_provider.runtime.events import ReportEvent, append_event
from airflow_provider.runtime.restoring import read_attempts
from tests.support.fit_world import (
    AT,
    FakeRay,
    Killed,
    World,
    begins_again,
    dies,
    ends,
    fails,
    quarantine,
    run_to_its_fall,
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_refit_goes_on_from_the_last_commit(world: World) -> None:
    """A refused manifest write kills a fit whatever max_failures says: the driver fits again within the job."""
    loop, ray = world.attempt(1, fails(FailureKind.NETWORK, 0, 1), fails(FailureKind.INFRASTRUCTURE, 2), ends(3))
    assert loop.run() is None
    assert ray.starts == [None, "attempts/000001/checkpoint_1", "attempts/000001/checkpoint_2"]
    assert loop.ending.facts.num_fits == 3
    restored = world.store.read_record(RestoredRecord, layout.restored(1, 1))
    assert restored is not None
    assert restored.checkpoint is None, "the record holds the first fit's"


def test_user_error_is_not_fitted_again(world: World) -> None:
    loop, ray = world.attempt(1, fails(FailureKind.USER, 0), ends())
    failure = loop.run()
    assert failure is not None
    assert failure.kind is FailureKind.USER
    assert len(ray.starts) == 1


def test_refits_are_bounded(world: World) -> None:
    """Three in a row without a commit, or max_refits in all: Airflow's retry is next."""
    barren, ray = world.attempt(1, *[fails(FailureKind.INFRASTRUCTURE)] * 9)
    assert barren.run() is not None
    assert len(ray.starts) == 3
    fits = [fails(FailureKind.INFRASTRUCTURE, i) for i in range(9)]
    fertile, ray = world.attempt(2, *fits, max_refits=2)
    assert fertile.run() is not None
    assert len(ray.starts) == 3


def test_next_attempt_restores_and_lists_what_the_first_kept(world: World) -> None:
    first, _ = world.attempt(1, fails(FailureKind.USER, 0, 1))
    first.run()
    second, ray = world.attempt(2, ends(2))
    assert second.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_1"]
    names = parse_manifest(world.store.read(layout.manifest(1, 2)) or b"", key="m").names
    assert names == ("attempts/000001/checkpoint_0", "attempts/000001/checkpoint_1", "attempts/000002/checkpoint_2")


def test_the_list_that_ray_loads_is_sorted_by_its_score(world: World) -> None:
    """Of another Ray would drop the best checkpoint with the first report."""
    first, _ = world.attempt(1, ends(0, 1, 2))
    assert first.run() is None
    second, ray = world.attempt(2, ends())
    config = CheckpointConfig(num_to_keep=3, checkpoint_score_attribute="epoch", checkpoint_score_order="min")
    training = second.spec.training.model_copy(update={"checkpoint": config})
    second.spec = second.spec.model_copy(update={"training": training})
    assert second.run() is None
    listed = parse_manifest(world.store.read(ray.manifest_key) or b"", key="m")
    assert [entry.metrics["epoch"] for entry in listed.entries] == [2, 1, 0]
    assert listed.latest is not None
    assert listed.latest.metrics == {"epoch": 2}
    assert ray.starts == ["attempts/000001/checkpoint_2"]


def test_without_fencing_the_plain_run_directory_is_used_and_found_again(world: World) -> None:
    """The fallback for a Ray that lacks our seams: its own run directory is the generation's folder."""
    first, _ = world.attempt(1, fails(FailureKind.INFRASTRUCTURE, 0), fails(FailureKind.USER, 1), is_fenced=False)
    first.run()
    second, ray = world.attempt(2, ends(2))
    assert second.run() is None
    assert ray.starts == ["checkpoint_1"]
    names = parse_manifest(world.store.read(layout.manifest(1, 2)) or b"", key="m").names
    assert names == ("checkpoint_0", "checkpoint_1", "attempts/000002/checkpoint_2")


def test_outcome_says_what_the_records_say(world: World) -> None:
    loop, _ = world.attempt(1, ends(0, 1))
    loop.run()
    outcome = loop.ending.outcome(OutcomeState.SUCCESS, None)
    assert (outcome.num_commits, outcome.latest_checkpoint) == (2, "attempts/000001/checkpoint_1")
    assert loop.ending.write_outcome(OutcomeState.SUCCESS, None, for_s=1.0)


def test_superseded_driver_writes_no_outcome(world: World) -> None:
    """PROTOCOL 3.5."""
    loop, _ = world.attempt(1, ends(0))
    loop.run()
    world.store.write(layout.claim(1, 2), b"{}")
    assert not loop.ending.write_outcome(OutcomeState.SUCCESS, None, for_s=1.0)
    assert not world.store.exists(layout.outcome(1, 1))


@pytest.mark.parametrize("is_twin_first", [True, False])
def test_a_driver_that_froze_leaves_the_attempt_to_the_run_that_began_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, is_twin_first: bool
) -> None:
    """Its first look found nothing and its sign of life hid the other's: the manifest still tells them apart."""

    class Left(Exception):
        """Stands in for the end of the process."""

    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr("airflow_provider.runtime.ending.os._exit", leave)
    loop, ray = world.attempt(1, fails(FailureKind.INFRASTRUCTURE, 0), ends(1))
    if not is_twin_first:
        assert loop.run() is None, "a refit finds a manifest of its own"
        return
    twin = Manifest((), None).body(ray_version="2.60.0")
    world.store.write(layout.manifest(1, 1), twin)
    with pytest.raises(Left, match=str(EXIT_SUPERSEDED)):
        loop.run()
    assert ray.starts == []
    assert world.store.read(layout.manifest(1, 1)) == twin
    assert not world.store.exists(layout.restored(1, 1))
    assert not world.store.exists(layout.outcome(1, 1))


def test_loop_that_begins_again_is_fatal(world: World) -> None:
    """G8: found at the first report after the restore."""
    first, _ = world.attempt(1, fails(FailureKind.USER, 4))
    first.run()
    fatal: list[Failure] = []

    def ignores(ray: FakeRay) -> None:
        append_event(ray.events_path, ReportEvent(at=AT, metrics={"epoch": 0}))

    second, _ = world.attempt(2, ignores)
    second.scribe.on_fatal = fatal.append
    second.run()
    assert [failure.kind for failure in fatal] == [FailureKind.USER]
    assert "epoch fell from 4 in the restored checkpoint to 0" in fatal[0].reason
    assert second.ending.outcome(OutcomeState.FAILED, fatal[0]).restore_proven == "no"


def test_what_a_loop_committed_that_began_again_is_not_gone_on_from(world: World) -> None:
    """G2: it is newer than the checkpoint that it ignored, and worth nothing; the next attempt says so and goes past it."""
    first, _ = world.attempt(1, fails(FailureKind.INFRASTRUCTURE, 3, 4), max_refits=0)
    first.run()

    second, _ = world.attempt(2, begins_again(0, 1))
    run_to_its_fall(second)
    third, ray = world.attempt(3, ends(5))
    third.run()
    assert ray.starts == ["attempts/000001/checkpoint_4"]
    assert "epoch fell from 4 to 0" in quarantine(world, 0, attempt=2).reason
    assert "epoch fell from 4 to 0" in quarantine(world, 1, attempt=2).reason


@pytest.mark.parametrize("num_recorded", [0, 9], ids=["not recorded", "recorded"])
def test_what_a_loop_ignored_is_gone_on_from_though_its_own_commits_replaced_it(
    world: World, num_recorded: int
) -> None:
    """G8 with num_to_keep=1: no manifest of the newest attempt lists the good one, and none shows a fall."""
    first, ray = world.attempt(1, fails(FailureKind.INFRASTRUCTURE, 3, 4), max_refits=0)
    ray.num_to_keep = 1
    first.run()

    second, ray = world.attempt(2, begins_again(0, 1))
    ray.num_to_keep = 1
    fatal: list[Failure] = []
    second.scribe.on_fatal = fatal.append
    second.run()
    if not num_recorded:
        for key in world.store.names("g000001/attempts/000002/records"):
            world.store.filesystem.delete_file(world.store.path(f"g000001/attempts/000002/records/{key}"))
    second.ending.write_outcome(OutcomeState.FAILED, fatal[0], for_s=1)
    third, ray = world.attempt(3, ends(5))
    third.run()
    good = "attempts/000001/checkpoint_4"
    assert ray.starts == [layout.copy_name(3, good)], "a retired one is copied before it is used"
    assert world.store.read(f"g000001/{ray.starts[0]}/w") == world.store.read(f"g000001/{good}/w")
    assert "epoch fell from 4 to" in quarantine(world, 1, attempt=2).reason
    restored = world.store.read_record(RestoredRecord, layout.restored(1, 3))
    assert restored is not None
    assert restored.metrics == {"epoch": 4}
    fourth, ray = world.attempt(4, ends())
    fourth.run()
    assert ray.starts == ["attempts/000003/checkpoint_5"]


@pytest.mark.parametrize("num_to_keep", [None, 1])
@pytest.mark.parametrize("is_recorded", [True, False], ids=["recorded", "not recorded"])
def test_a_fall_that_a_driver_died_too_early_to_tell_is_seen_all_the_same(
    world: World, num_to_keep: int | None, is_recorded: bool
) -> None:
    """SIGKILL between its first commit and its outcome: what it restored tells, with the metric that must not fall."""
    first, ray = world.attempt(1, fails(FailureKind.INFRASTRUCTURE, 3, 4), max_refits=0)
    ray.num_to_keep = num_to_keep
    first.run()

    second, ray = world.attempt(2, dies(0, 1))
    ray.num_to_keep = num_to_keep
    with pytest.raises(Killed):
        second.run()
    if not is_recorded:
        for name in world.store.names("g000001/attempts/000002/records"):
            world.store.filesystem.delete_file(world.store.path(f"g000001/attempts/000002/records/{name}"))
    third, ray = world.attempt(3, ends(5))
    third.run()
    good = "attempts/000001/checkpoint_4"
    assert ray.starts == [layout.copy_name(3, good) if num_to_keep else good]
    assert "epoch fell from 4" in quarantine(world, 1, attempt=2).reason


def test_a_fall_that_a_controller_died_too_early_to_tell_is_not_fitted_on_from(world: World) -> None:
    """Its event is missing, so the driver fits again: from what the loop ignored, not from where it began again."""
    first, _ = world.attempt(1, fails(FailureKind.INFRASTRUCTURE, 3, 4), max_refits=0)
    first.run()

    def untold(ray: FakeRay) -> None:
        path, ray.events_path = ray.events_path, ray.events_path + ".gone"
        try:
            fails(FailureKind.INFRASTRUCTURE, 0)(ray)
        finally:
            ray.events_path = path

    second, ray = world.attempt(2, untold, ends(5))
    second.run()
    assert ray.starts == ["attempts/000001/checkpoint_4"] * 2


@pytest.mark.parametrize(("values", "start"), [((5, 2), 2), ((4, 0), 0)])
def test_without_an_outcome_only_the_first_commit_can_have_fallen(
    world: World, values: tuple[int, ...], start: int
) -> None:
    """A metric that was proven once and fell later may be one that rises and falls: nobody judged it, so nothing is lost."""
    first, _ = world.attempt(1, fails(FailureKind.INFRASTRUCTURE, 4), max_refits=0)
    first.run()
    second, _ = world.attempt(2, dies(*values))
    with pytest.raises(Killed):
        second.run()
    third, ray = world.attempt(3, ends())
    third.run()
    assert ray.starts == [f"attempts/000002/checkpoint_{start}"]


def test_a_loop_that_begins_again_in_try_after_try_loses_nothing(world: World) -> None:
    """Each sets the beginning of the one before aside, restores a copy, and leaves it to the next."""
    first, ray = world.attempt(1, fails(FailureKind.INFRASTRUCTURE, 4), max_refits=0)
    ray.num_to_keep = 1
    first.run()
    good = "attempts/000001/checkpoint_4"

    for n in (2, 3, 4):
        attempt, ray = world.attempt(n, begins_again(0))
        ray.num_to_keep = 1
        run_to_its_fall(attempt)
        assert ray.starts == [good if n == 2 else layout.copy_name(n, good)]
    last, ray = world.attempt(5, ends(5))
    last.run()
    assert ray.starts == [layout.copy_name(5, good)]
    assert world.store.exists(f"g000001/{ray.starts[0]}/w")


def test_own_commits_before_the_fall_are_gone_on_from(world: World) -> None:
    """Ray started the workers again inside the attempt, and they began again: what it had committed by then is good."""
    first, ray = world.attempt(1, fails(FailureKind.INFRASTRUCTURE, 3), max_refits=0)
    first.run()

    def ignores(ray: FakeRay) -> None:
        append_event(ray.events_path, ReportEvent(at=AT, metrics={"epoch": 4}))
        for epoch in (4, 5):
            ray.commit(epoch)
        append_event(ray.events_path, ReportEvent(at=AT, metrics={"epoch": 0}))
        ray.commit(0)

    second, ray = world.attempt(2, ignores)
    ray.num_to_keep = 1
    run_to_its_fall(second)
    third, ray = world.attempt(3, ends(6))
    third.run()
    assert ray.starts == [layout.copy_name(3, "attempts/000002/checkpoint_5")]


def test_what_a_fit_told_is_never_judged_by_what_the_next_one_restored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow store held the scribe's lock as the fit ended, so its events are read once the next fit has begun."""

    def first(ray: FakeRay) -> None:
        append_event(ray.events_path, ReportEvent(at=AT, metrics={"epoch": 5}))
        fails(FailureKind.NETWORK, 5, 6)(ray)

    loop, ray = world.attempt(1, first, ends(7))
    fatal: list[Failure] = []
    loop.scribe.on_fatal = fatal.append
    with monkeypatch.context() as slow:
        slow.setattr(loop.scribe, "settle", lambda **_: False)
        assert loop.run() is None
    assert loop.scribe.settle()
    assert fatal == [], "a healthy training would end as a user error, without a retry"
    (found,) = read_attempts(world.store, ray.ref, say=lambda _text: None)
    parents = {e.checkpoint[-1]: e.parent and e.parent[-1] for e in found.checkpoints.recorded}
    assert parents == {"5": None, "6": "5", "7": "6"}


def test_earlier_attempts_are_read_in_order(world: World) -> None:
    for n in (1, 2, 3):
        world.attempt(n, fails(FailureKind.USER, n))[0].run()
    found = read_attempts(world.store, AttemptRef(generation=1, attempt=2), say=lambda _text: None)
    assert [a.ref.attempt for a in found] == [1, 2]
