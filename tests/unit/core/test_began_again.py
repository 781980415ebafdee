"""A loop that ignored its checkpoint: what it committed is not gone on from, whatever the manifest still lists."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider.core import layout
from airflow_provider.core.manifest import Manifest, ManifestEntry
from airflow_provider.core.records import CheckpointEntry, RestoredRecord
from airflow_provider.core.restore import (
    began_again,
    candidates,
)
from airflow_provider.core.restore_policy import RestorePolicy
from tests.support.records import NOW, entry, file, manifest
from tests.unit.core.test_restore import left, rank


def began(
    *listed: tuple[str, Any],
    metric: str | None = "epoch",
    recorded: tuple[CheckpointEntry, ...] = (),
    restored: RestoredRecord | None = None,
) -> dict[str, str]:
    """What attempt 2 of this manifest committed after it had begun again."""
    entries = tuple(ManifestEntry(name, {} if epoch is None else {"epoch": epoch}) for name, epoch in listed)
    second = left(2, Manifest(entries, entries[-1]), *recorded)
    return began_again([replace(second, fallen_metric=metric, restored=restored)])


def made(name: str, epoch: int, parent: str | None, **changes: Any) -> CheckpointEntry:
    return CheckpointEntry(checkpoint=name, metrics={"epoch": epoch}, parent=parent, reported_at=NOW, **changes)


A1, A2 = "attempts/000001", "attempts/000002"


def test_all_that_was_committed_behind_the_fall_began_again() -> None:
    """Also what had caught up: the loop had ignored the checkpoint all the same."""
    assert began((f"{A1}/c4", 4), (f"{A2}/c5", 5), (f"{A2}/c0", 0), (f"{A2}/c9", 9)) == {
        f"{A2}/c0": "its loop began again: epoch fell from 5 to 0",
        f"{A2}/c9": "its loop began again: epoch fell from 5 to 0",
    }


@pytest.mark.parametrize(
    ("listed", "metric"),
    [
        (((f"{A1}/c4", 4), (f"{A2}/c0", 0)), None),
        (((f"{A1}/c4", 4), (f"{A2}/c0", 0)), "step"),
        (((f"{A1}/c4", 4), (f"{A1}/c2", 2), (f"{A2}/c3", 3)), "epoch"),
        (((f"{A1}/c4", 4), (layout.copy_name(2, f"{A1}/c2"), 2), (f"{A2}/c3", 3)), "epoch"),
        (((f"{A2}/c0", 0), (f"{A2}/c1", 1)), "epoch"),
        (((f"{A1}/c4", 4), (f"{A2}/c5", None), (f"{A2}/c6", 6)), "epoch"),
    ],
    ids=["not said", "not reported", "restored an older one", "restored a copy", "nothing before it", "a gap"],
)
def test_what_went_on_from_where_it_was_restored_did_not_begin_again(listed: Any, metric: str | None) -> None:
    assert began(*listed, metric=metric) == {}


def test_a_clock_that_was_set_back_changes_no_order() -> None:
    """Records stand in the order of their commits; by time the last one would be a parent's elder."""
    good = RestoredRecord(checkpoint=f"{A1}/c4", reason="a retry", metrics={"epoch": 4}, created_at=NOW)
    back = NOW - timedelta(hours=1)
    begins = (made(f"{A2}/c0", 0, f"{A1}/c4"), replace(made(f"{A2}/c1", 1, f"{A2}/c0"), reported_at=back))
    assert set(began((f"{A2}/c1", 1), recorded=begins, restored=good)) == {f"{A2}/c0", f"{A2}/c1"}
    goes_on = (made(f"{A2}/c5", 5, f"{A1}/c4"), replace(made(f"{A2}/c6", 6, f"{A2}/c5"), reported_at=back))
    found = candidates([left(2, None, *goes_on)], policy=RestorePolicy())
    assert [c.name for c in found] == [f"{A2}/c6", f"{A2}/c5"]


def test_a_fall_is_seen_though_what_it_fell_from_is_listed_no_more() -> None:
    """num_to_keep=1: the manifest lists the newest of the new beginning alone."""
    good = RestoredRecord(checkpoint=f"{A1}/c4", reason="a retry", metrics={"epoch": 4}, created_at=NOW)
    fell = "its loop began again: epoch fell from 4 to"
    assert began((f"{A2}/c1", 1), restored=good) == {f"{A2}/c1": f"{fell} 1"}
    recorded = (made(f"{A2}/c0", 0, f"{A1}/c4"), made(f"{A2}/c7", 7, f"{A2}/c0"))
    assert began((f"{A2}/c7", 7), recorded=recorded, restored=good) == dict.fromkeys(
        (f"{A2}/c0", f"{A2}/c7"), f"{fell} 0"
    )
    for found_later in ((), (made(f"{A2}/c9", 9, None, late=True),)):
        assert began((f"{A2}/c9", 9), recorded=(*recorded[:1], *found_later), restored=good) == dict.fromkeys(
            (f"{A2}/c0", f"{A2}/c9"), f"{fell} 0"
        ), "committed while the driver ended, and recorded by nobody or by who came after it"
    late = made(f"{A2}/c1", 1, None, late=True)
    assert began((f"{A2}/c1", 1), recorded=(late,), restored=good) == {f"{A2}/c1": f"{fell} 1"}


def test_what_was_committed_before_the_fall_did_not_begin_again() -> None:
    """Nor did what went on from an older one, after the poison rule had set newer ones aside."""
    good = RestoredRecord(checkpoint=f"{A1}/c4", reason="a retry", metrics={"epoch": 4}, created_at=NOW)
    recorded = (
        made(f"{A2}/c5", 5, f"{A1}/c4"),
        made(f"{A2}/c6", 6, f"{A2}/c5"),
        made(f"{A2}/c7", 7, f"{A2}/c6"),
        made(f"{A2}/again6", 6, f"{A2}/c5"),
        made(f"{A2}/c0", 0, f"{A2}/again6"),
    )
    assert list(began((f"{A2}/c0", 0), recorded=recorded, restored=good)) == [f"{A2}/c0"]


def test_what_only_the_list_knows_follows_its_neighbour_there() -> None:
    """A torn segment of records hides commits of before the fall, too."""
    good = RestoredRecord(checkpoint=f"{A1}/c4", reason="a retry", metrics={"epoch": 4}, created_at=NOW)
    recorded = (made(f"{A2}/c7", 7, f"{A2}/c6"), made(f"{A2}/c0", 0, f"{A2}/c7"))
    listed = [(f"{A2}/c{epoch}", epoch) for epoch in (5, 6, 7, 0, 8)]
    assert list(began(*listed, recorded=recorded, restored=good)) == [f"{A2}/c0", f"{A2}/c8"]


def test_what_a_loop_ignored_ranks_behind_what_its_attempt_had_committed() -> None:
    good = RestoredRecord(checkpoint=f"{A1}/c4", reason="a retry", metrics={"epoch": 4}, created_at=NOW)
    second = replace(left(2, manifest(f"{A2}/c0"), made(f"{A2}/c5", 5, f"{A1}/c4")), restored=good)
    first = left(1, manifest(f"{A1}/c9"), entry(f"{A1}/c4"))
    found = rank(first, second)
    assert [(c.name, c.is_retired) for c in found] == [
        (f"{A2}/c0", False),
        (f"{A2}/c5", True),
        (f"{A1}/c4", True),
        (f"{A1}/c9", True),
    ]
    assert found[2].metrics == {"epoch": 4}
    assert found[2].expected == (file(),)


@pytest.mark.parametrize(
    ("listed", "recorded"),
    [
        ((0, 1, 2), (made(f"{A2}/c2", 2, f"{A2}/c1"),)),
        ((2,), (made(f"{A2}/c2", 2, f"{A2}/c1"),)),
        ((2,), (made(f"{A2}/c2", 2, f"{A2}/c1"), made(f"{A2}/c1", 1, None, late=True))),
    ],
    ids=["listed", "pruned", "told late"],
)
def test_a_torn_segment_hides_no_fall_from_what_was_committed_behind_it(listed: Any, recorded: Any) -> None:
    """The first commits of the new beginning stood in it: the newest one must not be gone on from all the same."""
    good = RestoredRecord(checkpoint=f"{A1}/c4", reason="a retry", metrics={"epoch": 4}, created_at=NOW)
    found = began(*((f"{A2}/c{epoch}", epoch) for epoch in listed), recorded=recorded, restored=good)
    assert f"{A2}/c2" in found


def test_a_torn_segment_accuses_nothing_that_went_on() -> None:
    good = RestoredRecord(checkpoint=f"{A1}/c4", reason="a retry", metrics={"epoch": 4}, created_at=NOW)
    recorded = (made(f"{A2}/c7", 7, f"{A2}/c6"), made(f"{A2}/again6", 6, f"{A2}/c5"))
    assert began((f"{A2}/again6", 6), (f"{A2}/again7", 7), recorded=recorded, restored=good) == {}
