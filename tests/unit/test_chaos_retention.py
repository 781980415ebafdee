"""The judge of chaos runs finds a committed checkpoint that is not in the bucket, and a deletion that retention did not ask for."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.chaos.faults import Target
from tests.chaos.observer import Event, Observer
from tests.chaos.points import TRIGGERS, Point
from tests.chaos.retention import Kept, pending_deletions
from tests.chaos.table import FREEZES, Pair, Way
from tests.chaos.verdict import Ended, judge
from tests.stack.gate import Seen
from tests.stack.s3 import S3Server
from tests.unit.test_chaos_verdict import ONE, TWO, manifest, name

FILES = {"state.pt": 1_200, ".metadata.json": 34}


def deleted(checkpoint: str) -> Event:
    return Event("deleted", ONE if "000001" in checkpoint else TWO, (checkpoint,))


# Two are kept, as in the DAG under attack; the first attempt ends after its third commit.
GOOD = [
    Event("claim", ONE),
    Event("restored", ONE),
    manifest(ONE),
    manifest(ONE, name(1, 0)),
    manifest(ONE, name(1, 0), name(1, 1)),
    manifest(ONE, name(1, 1), name(1, 2)),
    deleted(name(1, 0)),
    Event("claim", TWO),
    Event("restored", TWO, latest=name(1, 2)),
    manifest(TWO, name(1, 1), name(1, 2)),
    manifest(TWO, name(1, 2), name(2, 3)),
    deleted(name(1, 1)),
    Event("outcome", TWO),
]
BEGUN = GOOD.index(manifest(TWO, name(1, 1), name(1, 2))) + 1
"""Here the second attempt has begun, and has committed nothing yet."""
COMMITTED = frozenset({name(1, 2), name(2, 3)})
KEPT = Kept(
    recorded=dict.fromkeys(COMMITTED, FILES),
    found=dict.fromkeys(COMMITTED, FILES),
    listed={"the manifest of g1/a2": COMMITTED, "the published manifest": COMMITTED},
)
ENDED = Ended(
    state="success",
    epochs={name(1, 0): 0, name(1, 1): 1, name(1, 2): 2, name(2, 3): 3},
    last_epoch=3,
    is_bit_equal=True,
    lineage_attempts=frozenset({ONE, TWO}),
    kept=KEPT,
)


def with_bucket(**change: Any) -> Ended:
    return replace(ENDED, kept=replace(KEPT, **change))


def test_what_retention_pruned_on_purpose_is_not_lost() -> None:
    assert judge(GOOD, ENDED).is_clean
    leftover = with_bucket(found={**KEPT.found, name(1, 0): FILES})
    assert judge([e for e in GOOD if e != deleted(name(1, 0))], leftover).is_clean, "a driver killed before it deletes"


def test_a_pruned_checkpoint_still_belongs_to_the_lineage() -> None:
    """But for what a driver dropped with its last commit and could not record any more."""

    def without(lost: str) -> Ended:
        return replace(ENDED, epochs={n: epoch for n, epoch in ENDED.epochs.items() if n != lost})

    assert judge(GOOD, without(name(1, 0))).is_clean
    assert judge(GOOD, without(name(1, 1))).other == [f"the lineage lacks committed checkpoints {[name(1, 1)]}"]
    longer = [*GOOD[:6], manifest(ONE, name(1, 1), name(1, 2)), manifest(ONE, name(1, 2), name(1, 9)), *GOOD[6:]]
    assert name(1, 0) in judge(longer, without(name(1, 0))).other[0], "a commit before the last"
    alone = [event for event in GOOD if event.rank == ONE]
    assert name(1, 0) in judge(alone, without(name(1, 0))).other[0], "its driver lived to the end"


@pytest.mark.parametrize(
    "files",
    [{}, {"state.pt": 1_200}, {"state.pt": 0, ".metadata.json": 34}],
    ids=["nothing", "a file missing", "a file of another size"],
)
def test_a_committed_checkpoint_that_is_not_there_as_recorded_is_lost(files: Mapping[str, int]) -> None:
    (sentence,) = judge(GOOD, with_bucket(found={**KEPT.found, name(1, 2): files})).lost
    assert name(1, 2) in sentence


def test_a_committed_checkpoint_without_a_recorded_list_proves_nothing() -> None:
    assert judge(GOOD, with_bucket(recorded={**KEPT.recorded, name(1, 2): {}})).lost


def test_files_beside_the_recorded_ones_are_nobodys_loss() -> None:
    more = {**FILES, "_note.txt": 5}
    assert judge(GOOD, with_bucket(found={**KEPT.found, name(1, 2): more})).is_clean


@pytest.mark.parametrize("listed", [{name(1, 1), *COMMITTED}, {name(2, 3)}], ids=["more", "fewer"])
@pytest.mark.parametrize("which", sorted(KEPT.listed))
def test_manifests_list_what_the_lineage_calls_committed_and_no_more(which: str, listed: set[str]) -> None:
    (sentence,) = judge(GOOD, with_bucket(listed={**KEPT.listed, which: frozenset(listed)})).other
    assert sentence.startswith(which)


def test_no_manifest_at_the_end_proves_nothing() -> None:
    assert judge(GOOD, with_bucket(listed={})).other


def test_a_retention_that_never_deletes_proves_nothing() -> None:
    never = [event for event in GOOD if event.kind != "deleted"]
    assert judge(never, ENDED).other
    assert judge(never, replace(ENDED, kept=None)).is_clean, "nobody looked"


@pytest.mark.parametrize("at", [BEGUN - 1, BEGUN], ids=["before its first manifest", "after it"])
def test_what_the_newest_manifest_lists_must_not_be_deleted(at: int) -> None:
    """A zombie's old list, or a new attempt's wrong one: what is next restored is gone."""
    (sentence,) = judge([*GOOD[:at], deleted(name(1, 2)), *GOOD[at:]], ENDED).lost
    assert "listed it" in sentence


def test_a_thawed_writer_must_not_carry_out_what_it_dropped_before() -> None:
    """Frozen between its manifest and its deletion: the claim that came in between forbids it."""
    rest = [event for event in GOOD if event != deleted(name(1, 0))]
    at = rest.index(GOOD[BEGUN])
    zombie = [*rest[:at], deleted(name(1, 0)), *rest[at:]]
    thawed = replace(ENDED, is_thawed=True)
    assert judge(zombie, thawed).lost
    assert judge(zombie, replace(thawed, may_end_deletion=True)).is_clean, "frozen after its look at the claim"
    twice = [*zombie[: at + 1], manifest(ONE, name(1, 2)), deleted(name(1, 1)), *zombie[at + 1 :]]
    assert judge(twice, replace(thawed, may_end_deletion=True)).lost


def test_a_zombie_that_has_nothing_left_to_delete_proves_nothing() -> None:
    assert pending_deletions(GOOD) == set()
    assert pending_deletions([event for event in GOOD if event.kind != "deleted"]) == {name(1, 0)}
    assert pending_deletions([event for event in GOOD if event.rank == ONE]) == set(), "no newer attempt"


def test_an_upload_that_nobody_committed_must_stay() -> None:
    thawed = replace(ENDED, is_thawed=True, may_end_deletion=True)
    assert judge([*GOOD[:BEGUN], deleted(name(1, 9)), *GOOD[BEGUN:]], thawed).lost, (
        "retention has none of those on its way"
    )
    assert judge([deleted(name(1, 0)), *GOOD], ENDED).lost, "before any manifest"


def test_a_driver_is_frozen_between_its_manifest_and_its_deletion() -> None:
    """The manifest that is held there is the first with which retention drops something: there is something to delete."""
    assert Pair(Target.DRIVER, Point.MANIFEST_WRITE, Way.FREEZE) in FREEZES
    assert [pair.point for pair in FREEZES if pair.is_frozen_writer].count(Point.MANIFEST_WRITE) == 1


def test_an_upload_is_struck_at_its_file_and_not_at_its_folder() -> None:
    """Else two commits before it would be one folder and one file: nothing to go on from, and nothing to lose."""
    trigger = TRIGGERS[Point.UPLOAD]
    folder = f"/models/{FOLDER}/{name(1, 0)}/"
    assert trigger.matches(Seen(1, "PUT", f"{folder}state.pt"))
    assert not trigger.matches(Seen(1, "PUT", folder))
    assert not trigger.matches(Seen(1, "PUT", f"/models/{FOLDER}/attempts/000001/checkpoint_manager_snapshot.json"))


class Bucket:
    """What the observer asks of S3."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def client(self) -> Bucket:
        return self

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803 - boto3's names
        assert Bucket == "models"
        return {"Body": io.BytesIO(self.objects[Key])}

    def get_paginator(self, operation: str) -> Bucket:
        assert operation == "list_objects_v2"
        return self

    def paginate(self, *, Bucket: str, Prefix: str) -> list[dict[str, Any]]:  # noqa: N803
        assert Bucket == "models"
        found = [{"Key": k, "Size": len(body)} for k, body in self.objects.items() if k.startswith(Prefix)]
        return [{"Contents": found[:1]}, {"Contents": found[1:]}, {}]


FOLDER = "chaos/dag/run:1/g000001"


class Watched:
    """A bucket behind a gate, with the observer that the gate tells."""

    def __init__(self, *, is_watching_deletions: bool = True) -> None:
        self.bucket, self.number = Bucket(), 0
        self.observer = Observer(
            cast("S3Server", self.bucket), prefix="chaos/dag/", is_watching_deletions=is_watching_deletions
        )

    def request(self, method: str, target: str, *, status: int = 200) -> None:
        self.number += 1
        self.observer(Seen(self.number, method, target, status))

    def put(self, key: str, body: object = "x") -> None:
        self.bucket.objects[f"{FOLDER}/{key}"] = json.dumps(body).encode()
        self.request("PUT", f"/models/{FOLDER}/{key}".replace(":", "%3A"))

    def remove(self, checkpoint: str) -> None:
        for key in [k for k in self.bucket.objects if k.startswith(f"{FOLDER}/{checkpoint}/")]:
            del self.bucket.objects[key]

    def kinds(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(event.kind, event.names) for event in self.observer.events]


@pytest.fixture
def watched() -> Watched:
    """One attempt with two checkpoints."""
    found = Watched()
    for epoch in (0, 1):
        found.put(f"{name(1, epoch)}/state.pt")
        found.put(f"{name(1, epoch)}/.metadata.json")
        found.request("PUT", f"/models/{FOLDER}/{name(1, epoch)}/")
    found.put("attempts/000001/records/000001.json")
    return found


@pytest.mark.parametrize(
    ("method", "target"),
    [("POST", "/models?delete"), ("POST", "/models?delete="), ("DELETE", f"/models/{FOLDER}/{name(1, 0)}/state.pt")],
)
def test_a_deletion_is_seen_whoever_asks_for_it(watched: Watched, method: str, target: str) -> None:
    watched.remove(name(1, 0))
    watched.request(method, target, status=204)
    assert watched.kinds() == [("deleted", (name(1, 0),))]
    assert watched.observer.events[0].rank == ONE
    watched.request(method, target, status=204)
    assert len(watched.kinds()) == 1, "told once"


def test_a_request_that_deletes_nothing_is_no_deletion(watched: Watched) -> None:
    watched.request("DELETE", f"/models/{FOLDER}/{name(1, 0)}/state.pt?uploadId=7", status=204)
    watched.remove(name(1, 0))
    watched.request("DELETE", f"/models/{FOLDER}/{name(1, 0)}/state.pt?uploadId=7", status=204)
    watched.request("POST", "/models?delete", status=503)
    assert watched.kinds() == []


def test_one_file_gone_is_a_checkpoint_gone(watched: Watched) -> None:
    del watched.bucket.objects[f"{FOLDER}/{name(1, 1)}/.metadata.json"]
    watched.request("POST", "/models?delete")
    assert watched.kinds() == [("deleted", (name(1, 1),))]


def test_a_deletion_whose_answer_was_cut_off_comes_before_the_next_attempt(watched: Watched) -> None:
    """Otherwise it would count as one that came after the new attempt had begun."""
    watched.remove(name(1, 0))
    watched.put("attempts/000002/claim.json", {})
    assert [kind for kind, _ in watched.kinds()] == ["deleted", "claim"]
    watched.remove(name(1, 1))
    watched.observer.look()
    assert [kind for kind, _ in watched.kinds()] == ["deleted", "claim", "deleted"]


def test_a_deleted_checkpoint_is_no_commit_and_a_pruned_one_still_is(watched: Watched) -> None:
    def commit(*names: str) -> None:
        entries = [{"checkpoint_dir_name": n} for n in names]
        body = {"checkpoint_results": entries, "latest_checkpoint_result": entries[-1]}
        watched.put("attempts/000001/checkpoint_manager_snapshot.json", body)

    watched.remove(name(1, 0))
    watched.observer.look()
    assert watched.observer.num_commits(ONE) == 0
    commit(name(1, 0), name(1, 1))
    commit(name(1, 1), name(1, 2))
    assert watched.observer.num_commits(ONE) == 3


def test_who_does_not_watch_lists_nothing() -> None:
    """A benchmark's commits must not wait for listings."""
    blind = Watched(is_watching_deletions=False)
    blind.put(f"{name(1, 0)}/state.pt")
    blind.remove(name(1, 0))
    blind.request("POST", "/models?delete")
    blind.put("attempts/000002/claim.json", {})
    assert blind.kinds() == [("claim", ())]
