"""Which checkpoint an attempt starts from: no committed one may be lost, ignored, or restored although broken."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.core.errors import InvalidConfig, NoUsableCheckpoint
from airflow_provider.core.manifest import Manifest, ManifestEntry, parse_manifest
from airflow_provider.core.record_parts import CheckpointFile
from airflow_provider.core.records import SkippedCheckpoint
from airflow_provider.core.restore import (
    AttemptCheckpoints,
    Candidate,
    Quarantine,
    RestorePoint,
    candidates,
    conclude,
    newest_manifest,
    registration_order,
    start_manifest,
    verify,
)
from airflow_provider.core.restore_policy import RestorePolicy
from tests.support.records import entry, file, manifest, ref

CASES = Path(__file__).parents[2] / "fixtures" / "cases"
LATEST = RestorePolicy()


def best(order: Any = "max") -> RestorePolicy:
    return RestorePolicy(mode="best", metric="acc", order=order)


def left(attempt: int, listed: Manifest | None = None, *recorded: Any) -> AttemptCheckpoints:
    return AttemptCheckpoints(ref(1, attempt), listed, tuple(recorded))


def names(found: list[Candidate]) -> list[str]:
    return [c.name for c in found]


def rank(*attempts: AttemptCheckpoints, policy: RestorePolicy = LATEST, **changes: Any) -> list[Candidate]:
    return candidates(attempts, policy=policy, **changes)


def skip(*checkpoints: str) -> list[SkippedCheckpoint]:
    return [SkippedCheckpoint(checkpoint=c, why="model.pt is missing") for c in checkpoints]


def case(name: str) -> tuple[AttemptCheckpoints, dict[str, list[CheckpointFile]]]:
    """A recorded manifest, and the files that its bucket really holds by checkpoint."""
    body = (CASES / name / "checkpoint_manager_snapshot.json").read_bytes()
    files: dict[str, list[CheckpointFile]] = {}
    for item in json.loads((CASES / name / "listing.json").read_text())["objects"]:
        folder, _, key = item["key"].removeprefix("train/resnet__a1/").partition("/")
        if key:
            files.setdefault(folder, []).append(CheckpointFile(key=key, size=item["size"]))
    return left(1, parse_manifest(body, key=name)), files


def resolve(attempt: AttemptCheckpoints, files: dict[str, list[CheckpointFile]], policy: RestorePolicy) -> RestorePoint:
    """What the callers do: one candidate after the other."""
    considered, skipped = rank(attempt, policy=policy), []
    for candidate in considered:
        verdict = verify(candidate, files.get(candidate.name, []))
        if verdict.is_usable:
            return conclude(
                candidate, verdict=verdict, considered=considered, skipped=skipped, attempts=[attempt], policy=policy
            )
        skipped.append(SkippedCheckpoint(checkpoint=candidate.name, why=verdict.why))
    return conclude(None, verdict=None, considered=considered, skipped=skipped, attempts=[attempt], policy=policy)


# --- order --------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("C21")
def test_the_latest_comes_first_and_the_best_stays_where_it_was_registered() -> None:
    """C21: Ray's list is sorted by score; the last element is the best."""
    attempt, _ = case("C21")
    expected = json.loads((CASES / "C21" / "expect.json").read_text())
    assert names(rank(attempt))[0] == expected["resume_from"]
    assert names(rank(attempt, policy=best()))[0] == expected["best"]


def test_report_indices_undo_rays_sorting_by_score() -> None:
    entries = tuple(ManifestEntry(n) for n in ("c2", "c4", "c1", "c3"))
    sorted_by_score = Manifest(entries, entries[1], report_indices=(2, 4, 1, 3))
    assert [e.name for e in registration_order(sorted_by_score)] == ["c1", "c2", "c3", "c4"]


def test_indices_of_another_length_are_ignored() -> None:
    entries = (ManifestEntry("c1"), ManifestEntry("c2"))
    assert [e.name for e in registration_order(Manifest(entries, entries[0], (7,)))] == ["c2", "c1"]


def test_the_newest_attempts_manifest_decides_and_older_ones_are_retired() -> None:
    """Story 10: an older driver, thawed after its delete check, may still delete what the newest no longer lists."""
    found = rank(left(2, manifest("a2/c3", "a2/c4")), left(1, manifest("a1/c1", "a1/c2")), left(3))
    assert names(found) == ["a2/c4", "a2/c3", "a1/c2", "a1/c1"]
    assert [c.is_retired for c in found] == [False, False, True, True]
    assert [c.listed_by for c in found] == [ref(1, 2), ref(1, 2), ref(1, 1), ref(1, 1)]


def test_ranks_compare_as_numbers() -> None:
    newest = newest_manifest([left(9, manifest("old")), left(10, manifest("new")), left(11)])
    assert newest is not None
    assert newest.ref == ref(1, 10)
    assert newest_manifest([left(1)]) is None


def test_a_checkpoint_carried_over_is_listed_once_by_its_newest_attempt() -> None:
    found = rank(left(1, manifest("c1", "c2")), left(2, manifest("c2", "c3")))
    assert names(found) == ["c3", "c2", "c1"]
    assert found[1].listed_by == ref(1, 2)
    assert not found[1].is_retired


def test_records_add_what_no_manifest_lists_newest_first_and_retired() -> None:
    found = rank(left(1, manifest("c3"), entry("c1", 1), entry("c2", 2), entry("c3", 3)))
    assert names(found) == ["c3", "c2", "c1"]
    assert [c.is_retired for c in found] == [False, True, True]
    assert found[1].listed_by is None


def test_records_alone_are_candidates() -> None:
    found = rank(left(1, None, entry("c1", 1), entry("c2", 2)))
    assert [(c.name, c.is_retired) for c in found] == [("c2", False), ("c1", False)]


def test_the_recorded_file_list_travels_with_the_candidate() -> None:
    first, again = (file("a.pt"),), (file("b.pt"),)
    [known] = rank(left(1, manifest("c1"), entry("c1", files=first)))
    assert known.expected == first
    [newer] = rank(left(1, None, entry("c1", files=first)), left(2, manifest("c1"), entry("c1", files=again)))
    assert newer.expected == again
    [unlisted] = rank(left(1, manifest("c1"), entry("c1", files=())))
    assert unlisted.expected is None


def test_quarantined_ones_are_no_candidates_in_any_mode() -> None:
    attempt = left(1, manifest("c1", "c2", c1={"acc": 1.0}, c2={"acc": 2.0}))
    for policy in (LATEST, best(), RestorePolicy(mode="explicit", checkpoint="c2")):
        assert "c2" not in names(rank(attempt, policy=policy, quarantine=Quarantine(frozenset({"c2"}))))


def test_the_best_counts_finite_numbers_only_and_ties_go_to_the_newer() -> None:
    scores: list[Any] = [0.5, math.nan, math.inf, "0.99", None, True, 10**400, 0.5, 0.2]
    entries = tuple(ManifestEntry(f"c{i}", {"acc": s}) for i, s in enumerate(scores))
    attempt = left(1, Manifest(entries, entries[-1]))
    assert names(rank(attempt, policy=best())) == ["c7", "c0", "c8"]
    assert names(rank(attempt, policy=best("min"))) == ["c8", "c7", "c0"]


def test_best_needs_a_metric() -> None:
    with pytest.raises(InvalidConfig, match="needs a metric"):
        rank(left(1, manifest("c1")), policy=RestorePolicy(mode="best"))


def test_an_explicit_checkpoint_is_taken_also_from_an_older_attempt() -> None:
    attempts = (left(1, manifest("c1")), left(2, manifest("c2")))
    [found] = rank(*attempts, policy=RestorePolicy(mode="explicit", checkpoint="c1"))
    assert (found.name, found.is_retired) == ("c1", True)
    assert rank(*attempts, policy=RestorePolicy(mode="explicit", checkpoint="c9")) == []


# --- verify -------------------------------------------------------------------------------------------------------

RECORDED = Candidate("c1", expected=(file("a.pt", 8, "e1"), file("b.pt", 9, "")))
DAMAGE: list[tuple[list[CheckpointFile], str]] = [
    ([], "no file is left of it"),
    ([file("a.pt", 8, "e1")], "b.pt is missing (1 files there)"),
    ([file("a.pt", 7, "e1"), file("b.pt", 9)], "a.pt has 7 bytes instead of 8"),
    ([file("a.pt", 0, "e1"), file("b.pt", 9)], "a.pt has 0 bytes instead of 8"),
    ([file("a.pt", 8, "e2"), file("b.pt", 9)], "a.pt was written again: its etag changed"),
]


@pytest.mark.parametrize(("found", "why"), DAMAGE)
def test_each_kind_of_damage_is_named(found: list[CheckpointFile], why: str) -> None:
    assert verify(RECORDED, found) == type(verify(RECORDED, found))(is_usable=False, why=why)


@pytest.mark.parametrize(
    "found",
    [
        [file("a.pt", 8, "e1"), file("b.pt", 9)],
        [file("b.pt", 9, "any"), file("a.pt", 8, ""), file("extra", 0)],
    ],
)
def test_a_complete_checkpoint_is_usable(found: list[CheckpointFile]) -> None:
    """An etag counts only where both sides have one; further files harm nobody."""
    verdict = verify(RECORDED, found)
    assert verdict.is_usable
    assert "all 2 files" in verdict.why


def test_without_a_record_only_what_cannot_be_right_is_refused() -> None:
    unknown = Candidate("c1")
    assert not verify(unknown, []).is_usable
    assert verify(unknown, [file(size=0), file("b", 0)]).why == "all 2 files are empty"
    assert verify(unknown, [file(size=0), file("b", 1)]).is_usable


def test_a_recorded_list_of_empty_files_proves_nothing() -> None:
    """A record is made after the commit: a checkpoint that lost its bytes in between would look as it should."""
    empty = (file("a.pt", 0, "e1"), file("b.pt", 0))
    assert verify(Candidate("c1", expected=empty), empty).why == "all 2 files are empty"
    mixed = (file("a.pt", 0, "e1"), file("b.pt", 1))
    assert verify(Candidate("c1", expected=mixed), mixed).is_usable


# --- conclude -----------------------------------------------------------------------------------------------------


def test_an_unregistered_half_checkpoint_is_never_chosen() -> None:
    """C01: one rank uploaded, another died; the directory is newer than the manifest's latest."""
    attempt, files = case("C01")
    expected = json.loads((CASES / "C01" / "expect.json").read_text())
    assert expected["ignored"][0] in files
    assert expected["ignored"][0] not in names(rank(attempt))
    point = resolve(attempt, files, LATEST)
    assert point.candidate is not None
    assert point.candidate.name == expected["selected"]


@pytest.mark.scenario("C02")
def test_a_dangling_latest_is_rolled_back_and_recorded() -> None:
    """C02: a lifecycle rule removed it; Ray alone refuses to start, each retry alike."""
    attempt, files = case("C02")
    expected = json.loads((CASES / "C02" / "expect.json").read_text())
    point = resolve(attempt, files, LATEST)
    assert point.candidate is not None
    assert point.candidate.name == expected["usable_fallback"]
    assert [s.checkpoint for s in point.skipped] == [expected["latest_in_snapshot"]]
    assert "went back over 1 unusable" in point.reason
    written = start_manifest([attempt], point=point, on_disk=frozenset(files))
    assert expected["latest_in_snapshot"] not in written.names
    assert written.latest is not None
    assert written.latest.name == expected["usable_fallback"]


def test_on_corrupt_fail_names_the_checkpoint_instead_of_rolling_back() -> None:
    attempt, files = case("C02")
    with pytest.raises(NoUsableCheckpoint, match=r"12-00-00.000009 can't be restored") as caught:
        resolve(attempt, files, RestorePolicy(on_corrupt="fail"))
    assert not caught.value.kind.is_retryable
    assert "no file is left" in str(caught.value)


def test_all_corrupt_refuses_and_names_them() -> None:
    """Never quietly from scratch: the objects may come back from the bucket's versions."""
    attempt, _ = case("C02")
    with pytest.raises(NoUsableCheckpoint, match="None of 3 committed checkpoints") as caught:
        resolve(attempt, {}, LATEST)
    assert "12-00-00.000009" in str(caught.value)
    assert "nothing was overwritten" in str(caught.value)


def test_an_explicit_checkpoint_that_is_unknown_refuses_by_name() -> None:
    attempt, files = case("C02")
    with pytest.raises(NoUsableCheckpoint, match="checkpoint_typo"):
        resolve(attempt, files, RestorePolicy(mode="explicit", checkpoint="checkpoint_typo"))


def test_an_explicit_checkpoint_is_never_replaced_by_another() -> None:
    attempt, files = case("C02")
    gone = "checkpoint_2026-11-20_12-00-00.000009"
    with pytest.raises(NoUsableCheckpoint, match=gone):
        resolve(attempt, files, RestorePolicy(mode="explicit", checkpoint=gone))


def test_best_without_a_finite_score_refuses() -> None:
    attempt, files = case("C02")
    with pytest.raises(NoUsableCheckpoint, match="No checkpoint reports a finite acc"):
        resolve(attempt, files, best())


RECORDS_ONLY = left(1, None, entry("c1"), entry("c2", 1))


@pytest.mark.parametrize("attempt", [left(1, manifest("c1", "c2")), RECORDS_ONLY])
def test_all_in_quarantine_refuses(attempt: AttemptCheckpoints) -> None:
    """Also where only records know them: a lost manifest is no reason to begin again."""
    assert rank(attempt, quarantine=Quarantine(frozenset({"c1", "c2"}))) == []
    with pytest.raises(NoUsableCheckpoint, match="All 2 committed checkpoints are in quarantine"):
        conclude(None, verdict=None, considered=[], skipped=[], attempts=[attempt], policy=LATEST)


def test_a_checkpoint_listed_by_two_manifests_counts_once() -> None:
    attempts = [left(1, manifest("c1")), left(2, manifest("c1"))]
    with pytest.raises(NoUsableCheckpoint, match="All 1 committed"):
        conclude(None, verdict=None, considered=[], skipped=[], attempts=attempts, policy=LATEST)


@pytest.mark.parametrize("policy", [LATEST, best(), RestorePolicy(on_corrupt="fail")])
def test_where_nothing_was_ever_committed_training_starts(policy: RestorePolicy) -> None:
    attempts = [left(1), left(2, Manifest())]
    point = conclude(None, verdict=None, considered=[], skipped=[], attempts=attempts, policy=policy)
    assert point == RestorePoint(None, "from the start: no committed checkpoint in 2 earlier attempts")


# --- the manifest an attempt starts with --------------------------------------------------------------------------


def test_the_start_manifest_lists_what_exists_with_the_restore_point_as_latest() -> None:
    """Ray refuses to start when any listed directory is gone."""
    attempts = [left(1, manifest("old")), left(2, manifest("c1", "c2", "c3", "c4", "c5", c2={"acc": 0.7}))]
    point = RestorePoint(Candidate("c2", {"acc": 0.7}), "because", tuple(skip("c5")))
    written = start_manifest(
        attempts, point=point, on_disk=frozenset({"old", "c1", "c2", "c4", "c5"}), quarantined=frozenset({"c4"})
    )
    assert written.names == ("c1", "c2")
    assert written.latest == ManifestEntry("c2", {"acc": 0.7})
    assert written.report_indices == (0, 1)


def test_a_copy_of_a_retired_checkpoint_is_added_as_the_latest() -> None:
    point = RestorePoint(Candidate("attempts/000003/copy"), "because")
    written = start_manifest([left(2, manifest("c1"))], point=point, on_disk=frozenset({"c1"}))
    assert written.names == ("c1", "attempts/000003/copy")
    assert written.latest == ManifestEntry("attempts/000003/copy", {})


def test_from_the_start_the_manifest_is_empty() -> None:
    assert start_manifest([left(1)], point=RestorePoint(None, "first"), on_disk=frozenset({"junk"})) == Manifest()
