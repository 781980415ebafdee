"""The goodput on the page is that of the records: when the page was read changes no second that has been."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider.core.goodput import Cause, goodput
from airflow_provider.core.lineage import AttemptRecords, ExperimentFacts, project
from airflow_provider.core.records import AliveRecord, Phase, PhaseEntry, RecordSegment, RestoredRecord
from airflow_provider.plugin.view.facts import Seen
from airflow_provider.plugin.view.goodput import build_goodput
from tests.support.lineage_page import URI, after, name
from tests.support.records import NOW, attempt_records, entry, manifest, outcome, owner

ENTERED = (("starting", 12), ("waiting", 13), ("training", 14))


def training(*, ahead: float = 0, **changes: Any) -> ExperimentFacts:
    """One attempt: 12 s until its driver starts, whose clock may be ahead, then it trains and commits."""
    phases = tuple(PhaseEntry(phase=Phase(phase), at=after(at + ahead)) for phase, at in ENTERED)
    commits = tuple(entry(name(1, i), 15 + 5 * i + ahead) for i in range(3))
    segment = RecordSegment(checkpoints=commits, phases=phases, written_at=NOW)
    restored = RestoredRecord(checkpoint=None, reason="from the start", created_at=after(13 + ahead))
    attempt: AttemptRecords = attempt_records(
        1, segments=(segment,), restored=restored, manifest=manifest(*(e.checkpoint for e in commits))
    )
    return ExperimentFacts(URI, (owner(1),), (replace(attempt, **changes),))


def alive(since: float, written_at: float) -> AliveRecord:
    return AliveRecord(run_uid="u", phase=Phase.TRAINING, phase_since=after(since), written_at=after(written_at))


def shown(facts: ExperimentFacts, *, read_at: float) -> dict[str, str]:
    found = build_goodput(Seen(project(facts), after(read_at), facts))
    assert found is not None
    return {share.css_name: share.time for share in found.shares}


@pytest.mark.parametrize("read_at", [41.5, 44, 46, 1_000])
def test_an_ended_training_is_the_same_whenever_it_is_read(read_at: float) -> None:
    """Its page is made once: what the first look after the end makes of it stays."""
    ended = training(outcome=outcome("success").model_copy(update={"finished_at": after(41)}))
    assert goodput(ended, now=after(1_000)).total.lost_s[Cause.QUEUEING] == 12
    assert shown(ended, read_at=read_at) == {
        "productive": "27 s",
        "queueing": "12 s",
        "start_up": "1 s",
        "waiting": "1 s",
    }


@pytest.mark.parametrize("read_at", [38.5, 44, 46])
def test_what_a_running_training_waited_for_stays(read_at: float) -> None:
    running = training(alive=alive(14, 38), alive_age_s=read_at - 38)
    spent = shown(running, read_at=read_at)
    assert (spent["queueing"], spent["start_up"], spent["waiting"]) == ("12 s", "1 s", "1 s")


def test_a_driver_ahead_of_every_other_clock_is_moved_back() -> None:
    moved = training(ahead=3_600, alive=alive(3_614, 3_638), alive_age_s=2)
    assert shown(moved, read_at=40) == {
        "productive": "24 s",
        "queueing": "14 s",
        "start_up": "1 s",
        "waiting": "1 s",
    }, "by the least that puts its last sign of life before the reading"
