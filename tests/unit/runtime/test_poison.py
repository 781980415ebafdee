"""Code or checkpoint? What is set aside, given back, convicted, and what a dead driver leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider.core import layout
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import QuarantineRecord
from airflow_provider.runtime.restoring import Resolved, read_quarantine
from tests.support.experiment import NOW
from tests.support.fit_world import (
    FakeRay,
    Fit,
    Killed,
    World,
    begins_again,
    dies,
    ends,
    fails,
    quarantine,
    repeats,
    run_to_its_fall,
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_poisonous_checkpoint_is_set_aside_and_training_goes_on(world: World) -> None:
    """G3: it fails from checkpoint 1 again and again, and not from the one before."""
    loop, ray = world.attempt(1, repeats(0, 1), ends(2))
    assert loop.run() is None
    assert ray.starts == [None, "attempts/000001/checkpoint_0"]
    assert quarantine(world, 1).released_by is None
    assert "loss is nan" in quarantine(world, 1).reason
    later, ray = world.attempt(2, ends(3))
    assert later.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_2"]


@pytest.mark.parametrize("is_fenced", [True, False])
def test_error_of_the_code_releases_the_checkpoint(world: World, is_fenced: bool) -> None:
    """G2, G6: the same error from the one before, so the code is corrected and training goes on from the newest."""
    loop, ray = world.attempt(1, repeats(0, 1), repeats(), is_fenced=is_fenced)
    failure = loop.run()
    assert failure is not None
    assert failure.kind is FailureKind.USER
    folder = "attempts/000001/" if is_fenced else ""
    assert ray.starts == [None, f"{folder}checkpoint_0"]
    record = world.store.read_record(QuarantineRecord, layout.quarantine(1, f"{folder}checkpoint_1"))
    assert record is not None
    assert record.released_by == "g1/a1"
    later, ray = world.attempt(2, ends(2), is_fenced=is_fenced)
    assert later.run() is None
    assert ray.starts == [f"{folder}checkpoint_1"]


@pytest.mark.parametrize("number", [0, 1], ids=["before the suspicion", "during it"])
def test_what_a_person_set_aside_is_not_given_back_by_a_driver(world: World, number: int) -> None:
    """The error is the code's, so the driver releases what it suspected; a person's word stands all the same."""
    name = "attempts/000001/checkpoint_1"
    word = QuarantineRecord(checkpoint=name, reason="by jo: a bad batch", attempt=1, created_at=NOW)
    fits = [repeats(0, 1), repeats()]

    def fit(ray: FakeRay, real: Fit = fits[number]) -> None:
        world.store.write_record(layout.quarantine(1, name), word)
        real(ray)

    fits[number] = fit
    loop, _ = world.attempt(1, *fits)
    assert loop.run() is not None
    assert quarantine(world, 1) == word


def test_error_of_the_code_after_new_commits_keeps_those(world: World) -> None:
    loop, _ = world.attempt(1, repeats(0, 1), repeats(5))
    assert loop.run() is not None
    assert quarantine(world, 1).released_by == "g1/a1"
    later, ray = world.attempt(2, ends())
    assert later.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_5"]


def test_only_checkpoint_is_given_back(world: World) -> None:
    """There is none before it: a user error, and the checkpoint is restored when the code is corrected."""
    loop, ray = world.attempt(1, repeats(0))
    failure = loop.run()
    assert failure is not None
    assert (failure.kind, failure.reason) == (FailureKind.USER, "loss is nan")
    assert ray.starts == [None]
    assert quarantine(world, 0).released_by == "g1/a1"
    later, ray = world.attempt(2, ends())
    assert later.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_0"]


def test_restored_checkpoint_of_an_earlier_attempt_can_be_poisonous(world: World) -> None:
    first, _ = world.attempt(1, fails(FailureKind.USER, 0, 1))
    first.run()
    loop, ray = world.attempt(2, repeats(), ends(2))
    assert loop.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_1", "attempts/000001/checkpoint_0"]
    assert quarantine(world, 1).attempt == 2


def test_commits_since_the_suspicion_are_kept_when_it_is_released(world: World) -> None:
    """Fit 2 committed, fit 3 did not: the manifest of the suspicion's time must not come back."""
    loop, _ = world.attempt(1, repeats(0, 1), fails(FailureKind.INFRASTRUCTURE, 5), repeats())
    assert loop.run() is not None
    later, ray = world.attempt(2, ends())
    assert later.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_5"]


def test_a_suspicion_lapses_with_its_driver(world: World) -> None:
    """It died before it knew: the next attempt restores the newest commit, and finds out by itself."""
    first, _ = world.attempt(1, repeats(0, 1, 2), dies())
    with pytest.raises(Killed):
        first.run()
    assert quarantine(world, 2).released_by is None
    second, ray = world.attempt(2, repeats(), repeats())
    failure = second.run()
    assert failure is not None
    assert failure.kind is FailureKind.USER
    assert ray.starts == ["attempts/000001/checkpoint_2", "attempts/000001/checkpoint_1"]
    third, ray = world.attempt(3, ends())
    assert third.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_2"]


def test_suspicions_that_lapsed_one_after_another_hide_nothing(world: World) -> None:
    for n in (1, 2):
        loop, _ = world.attempt(n, repeats(*((0, 1, 2) if n == 1 else ())), dies())
        with pytest.raises(Killed):
            loop.run()
    last, ray = world.attempt(3, ends())
    assert last.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_2"]


def test_the_only_checkpoint_is_restored_although_its_driver_died_before_it_gave_it_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, _ = world.attempt(1, repeats(0))
    monkeypatch.setattr(loop.poison, "settle", lambda **_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        loop.run()
    later, ray = world.attempt(2, ends(1))
    assert later.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_0"]


def test_a_suspect_that_was_never_judged_is_released_at_the_end(world: World) -> None:
    """The fit without it ended for another reason."""
    loop, _ = world.attempt(1, repeats(0, 1), fails(FailureKind.OUT_OF_MEMORY))
    assert loop.run() is not None
    assert quarantine(world, 1).released_by == "g1/a1"
    later, ray = world.attempt(2, ends())
    assert later.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_1"]


def test_a_suspect_that_training_went_past_stays_in_quarantine(world: World) -> None:
    loop, _ = world.attempt(1, repeats(0, 1), ends(2))
    assert loop.run() is None
    assert (quarantine(world, 1).is_suspicion, quarantine(world, 1).released_by) == (False, None)
    best, ray = world.attempt(2, ends())
    assert best.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_2"]


def test_what_a_convicted_copy_was_made_of_is_not_copied_again(world: World) -> None:
    first, _ = world.attempt(1, fails(FailureKind.INFRASTRUCTURE, 3, 4), max_refits=0)
    first.run()

    second, ray = world.attempt(2, begins_again(0))
    ray.num_to_keep = 1
    run_to_its_fall(second)
    third, ray = world.attempt(3, repeats(), ends(5))
    assert third.run() is None
    originals = [f"attempts/000001/checkpoint_{epoch}" for epoch in (4, 3)]
    assert ray.starts == [layout.copy_name(3, name) for name in originals]
    assert "loss is nan" in quarantine(world, 4).reason
    banned = read_quarantine(world.store, AttemptRef(generation=1, attempt=4)).banned
    assert banned >= {originals[0], layout.copy_name(3, originals[0])}
    assert originals[1] not in banned


def test_a_newer_attempt_is_not_written_over_by_one_that_gives_a_suspect_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, _ = world.attempt(1, repeats(0))
    ended: list[str] = []

    def obey(hit: Any) -> None:
        ended.append(hit.reason)
        raise Killed

    monkeypatch.setattr(loop.ending, "obey", obey)
    real = loop.training.fit

    def superseded(start: Resolved, *, fit: int) -> None:
        world.store.write(layout.claim(1, 2), b"{}")
        real(start, fit=fit)

    monkeypatch.setattr(loop.training, "fit", superseded)
    with pytest.raises(Killed):
        loop.run()
    assert "newer claim" in ended[0]
    assert world.store.names("g000001/quarantine") == []
