"""The judge of chaos runs finds what it is there to find: without this a clean table would prove nothing."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.chaos.faults import NothingToStrike, Target, slow
from tests.chaos.observer import Event
from tests.chaos.points import Point
from tests.chaos.report import Report, read_reports, write_reports
from tests.chaos.table import FIXED, FREEZES, Pair, markdown, pairs, reason_against
from tests.chaos.verdict import Ended, Verdict, judge
from tests.stack.gate import Gate
from tests.stack.process import free_port
from tests.support.training_run import TrainingRun

ONE, TWO = (1, 1), (1, 2)


def name(attempt: int, epoch: int) -> str:
    return f"attempts/{attempt:06d}/checkpoint_{epoch}"


def manifest(rank: tuple[int, int], *names: str) -> Event:
    return Event("manifest", rank, names, names[-1] if names else None)


GOOD = [
    Event("claim", ONE),
    Event("restored", ONE),
    manifest(ONE),
    manifest(ONE, name(1, 0)),
    manifest(ONE, name(1, 0), name(1, 1)),
    Event("claim", TWO),
    Event("restored", TWO, latest=name(1, 1)),
    manifest(TWO, name(1, 0), name(1, 1)),
    manifest(TWO, name(1, 0), name(1, 1), name(2, 2)),
    Event("outcome", TWO),
]
ENDED = Ended(
    state="success",
    epochs={name(1, 0): 0, name(1, 1): 1, name(2, 2): 2},
    last_epoch=2,
    is_bit_equal=True,
    lineage_attempts=frozenset({ONE, TWO}),
)


def test_a_killed_and_restored_run_is_clean() -> None:
    assert judge(GOOD, ENDED).is_clean


def test_an_older_checkpoint_restored_is_a_lost_one() -> None:
    events = [Event("restored", TWO, latest=name(1, 0)) if e.rank == TWO and e.kind == "restored" else e for e in GOOD]
    assert judge(events, ENDED).lost
    assert judge(GOOD, replace(ENDED, epochs={**ENDED.epochs, name(2, 1): 1})).lost, "trained once more"


def test_a_commit_of_an_older_attempt_after_a_newer_one_restored_is_a_double_one() -> None:
    zombie = [*GOOD[:8], manifest(ONE, name(1, 0), name(1, 1), name(1, 2)), *GOOD[8:]]
    assert judge(zombie, ENDED).double
    rewrite = [*GOOD[:8], manifest(ONE, name(1, 0), name(1, 1)), *GOOD[8:]]
    assert not judge(rewrite, ENDED).double, "the same list again commits nothing"


def test_a_thawed_writer_may_have_had_one_manifest_on_its_way_and_no_more() -> None:
    """It writes, then checks the claim, and ends. What it listed is nobody's: not restored, and not an epoch done twice."""
    late = manifest(ONE, name(1, 0), name(1, 1), name(1, 2))
    thawed = replace(ENDED, is_thawed=True, epochs={**ENDED.epochs, name(1, 2): 2})
    assert judge([*GOOD[:8], late, *GOOD[8:]], thawed).is_clean
    again = manifest(ONE, name(1, 0), name(1, 1), name(1, 2), name(1, 3))
    more = replace(thawed, epochs={**thawed.epochs, name(1, 3): 3})
    assert judge([*GOOD[:8], late, again, *GOOD[8:]], more).double


def test_everything_else_is_told() -> None:
    assert judge(GOOD, replace(ENDED, live_jobs=("job-1",))).orphans
    for change in (
        {"state": "failed"},
        {"epochs": {name(1, 0): 0, name(1, 1): 1}},
        {"is_bit_equal": False},
        {"lineage_attempts": frozenset({ONE})},
        {"epochs": {name(1, 0): 0, name(2, 2): 2}},
    ):
        assert judge(GOOD, replace(ENDED, **change)).other, change  # type: ignore[arg-type]


def test_an_observer_that_saw_nothing_proves_nothing() -> None:
    """Records that moved to other keys must not make every run a clean one."""
    assert judge([], ENDED).other
    assert judge([event for event in GOOD if event.kind != "manifest"], ENDED).other
    assert judge([event for event in GOOD if event.kind == "manifest"], ENDED).other


def test_the_fixed_runs_cover_what_every_test_run_must() -> None:
    """At least ten, with driver, training worker, Airflow worker, triggerer, store, and one SIGSTOP."""
    assert len(set(FIXED)) >= 10
    needed = {Target.DRIVER, Target.TRAINING_WORKER, Target.AIRFLOW_WORKER, Target.TRIGGERER, Target.OBJECT_STORE}
    assert needed <= {pair.target for pair in FIXED}
    assert any(pair.is_freeze for pair in FIXED)
    assert set(FIXED) <= set(pairs())


def test_every_pair_is_run_or_has_its_reason() -> None:
    for target in Target:
        for point in Point:
            pair = Pair(target, point)
            assert (pair in pairs()) is (reason_against(pair) is None)
    assert set(FREEZES) <= set(pairs())


def test_the_page_shows_the_table_as_it_is() -> None:
    page = Path(__file__).parents[2] / "docs" / "chaos.md"
    assert markdown() in page.read_text()


@pytest.mark.parametrize("num_requests", [0, 2])
def test_a_slow_network_that_nobody_used_proves_nothing(num_requests: int) -> None:
    with Gate(free_port()) as gate:
        run = SimpleNamespace(stack=SimpleNamespace(gates={"s3": gate}))
        struck = slow(Target.STORE_NETWORK, cast("TrainingRun", run))
        assert gate.delay_s > 0
        gate.num_delayed += num_requests
        assert struck.recover is not None
        with nullcontext() if num_requests else pytest.raises(NothingToStrike):
            struck.recover()
        assert gate.delay_s == 0


def test_reports_outlive_the_command(tmp_path: Path) -> None:
    file = tmp_path / "chaos.json"
    assert read_reports(file) == []
    reports = [
        Report("kill driver at the end", "pids [1]", 2, 2, 41.5, Verdict()),
        Report("kill head after POST", "session s", 2, 2, 98.0, Verdict(lost=["epoch 3"], orphans=["driver 7"])),
    ]
    write_reports(file, reports)
    assert read_reports(file) == reports
    assert [report.verdict.is_clean for report in read_reports(file)] == [True, False]
