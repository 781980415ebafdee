"""A person sets a checkpoint aside and gives it back: restores obey at once, nothing of another process is overwritten."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.cli.exit_codes import NOT_FOUND, OK, PROBLEM, USAGE
from airflow_provider.core import layout
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import CollectedRecord, QuarantineRecord
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.storage.local import LocalObjectStore
from airflow_provider.storage.restore_scan import scan_restore_point
from tests.support.command_line import CommandLine, Said, files, on_disk
from tests.support.experiment import NOW
from tests.support.training_try import Bench

NAME = "attempts/000001/checkpoint_c"
FULL = f"g000001/{NAME}"
KEY = layout.quarantine(1, NAME)


@pytest.fixture
def path(bench: Bench, folder: Path) -> Path:
    return on_disk(bench, folder)


def restores(path: Path, *, attempt: int = 2) -> str | None:
    """What the next attempt would restore."""
    records = ExperimentRecords(LocalObjectStore(str(path)))
    point = scan_restore_point(records, ref=AttemptRef(generation=1, attempt=attempt), policy=RestorePolicy())
    return point.candidate.name if point and point.candidate else None


def record(path: Path) -> QuarantineRecord:
    return QuarantineRecord.parse((path / KEY).read_bytes(), key=KEY)


def write(path: Path, **changes: Any) -> None:
    known: dict[str, Any] = {"checkpoint": NAME, "reason": "poison: x", "attempt": 1, "created_at": NOW, **changes}
    (path / KEY).parent.mkdir(parents=True, exist_ok=True)
    (path / KEY).write_bytes(QuarantineRecord(**known).body())


def test_a_finished_training_is_restored_only_where_the_task_asks_for_it(
    bench: Bench, cli: CommandLine, folder: Path
) -> None:
    bench.end("success")
    bench.store.put_raw(layout.collected(1, 1), CollectedRecord(k=1, accepted=True, written_at=NOW).body())
    said = quarantine(cli, on_disk(bench, folder))
    assert "a clear trains anew; with on_clear='restore' the next attempt (g1/a2) would begin so" in said.text


def quarantine(cli: CommandLine, path: Path, name: str = FULL, *more: str) -> Said:
    return cli("checkpoints", "quarantine", name, "--experiment", path, "--reason", "loss jumped", *more)


def release(cli: CommandLine, path: Path, *more: str) -> Said:
    return cli("checkpoints", "release", FULL, "--experiment", path, "--reason", "it was the data", *more)


def test_a_quarantined_checkpoint_is_passed_over_until_it_is_released(cli: CommandLine, path: Path) -> None:
    assert restores(path) == NAME
    said = quarantine(cli, path)
    assert said.code == OK, said.err
    assert restores(path) == "attempts/000001/checkpoint_b"
    assert "restoring attempts/000001/checkpoint_b" in said.out
    assert record(path).reason == f"by {getpass.getuser()}: loss jumped"
    assert [c["state"] for c in cli("lineage", path, "--json").json["checkpoints"]][-1] == "quarantined"

    back = release(cli, path)
    assert back.code == OK, back.err
    assert restores(path) == NAME
    assert record(path).released_by == f"{getpass.getuser()}: it was the data"
    assert record(path).reason == f"by {getpass.getuser()}: loss jumped", "who set it aside stays"

    again = quarantine(cli, path, FULL, "--json")
    assert again.json["changed"] is True
    assert restores(path) == "attempts/000001/checkpoint_b"


def test_the_uri_of_a_checkpoint_names_its_experiment(cli: CommandLine, path: Path) -> None:
    said = cli("checkpoints", "quarantine", f"{path}/{FULL}", "--reason", "x", "--json")
    assert said.code == OK, said.err
    assert said.json["checkpoint"] == FULL
    assert (path / KEY).exists()


def test_the_folders_name_alone_will_do_while_only_one_has_it(cli: CommandLine, bench: Bench, folder: Path) -> None:
    """It is what the tree shows."""
    bench.own(2)
    bench.claim(2, k=2)
    bench.commit("checkpoint_c", attempt=2)
    path = on_disk(bench, folder)
    said = quarantine(cli, path, "checkpoint_c")
    assert said.code == USAGE
    assert "2 checkpoints are called checkpoint_c" in said.err
    assert FULL in said.err
    assert quarantine(cli, path, "checkpoint_b", "--json").json["checkpoint"] == "g000001/attempts/000001/checkpoint_b"


def test_whatever_a_person_types_can_be_stored_and_read_again(cli: CommandLine, path: Path) -> None:
    """A record that can't be read would forbid every restore."""
    odd = "\udcff" + "x" * 100_000
    words = ("--experiment", path, "--reason", odd)
    assert cli("checkpoints", "quarantine", FULL, *words).code == OK
    assert cli("checkpoints", "release", FULL, *words).code == OK
    assert len(record(path).released_by or "") < 4_000
    assert restores(path) == NAME


def test_saying_it_twice_changes_nothing(cli: CommandLine, path: Path) -> None:
    quarantine(cli, path)
    before = files(path)
    said = quarantine(cli, path, FULL, "--json")
    assert (said.code, said.json["changed"]) == (OK, False)
    assert files(path) == before
    release(cli, path)
    before = files(path)
    assert release(cli, path, "--json").json["changed"] is False
    assert files(path) == before


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("g000001/attempts/000001/checkpoint_zzz", NOT_FOUND),
        ("g000002/attempts/000001/checkpoint_c", NOT_FOUND),
        ("g000001/attempts/000001", NOT_FOUND),
        ("checkpoint_zzz", NOT_FOUND),
        ("/models/checkpoint_c", USAGE),
    ],
)
def test_a_name_that_the_experiment_does_not_have_is_refused(
    cli: CommandLine, path: Path, name: str, code: int
) -> None:
    before = files(path)
    assert quarantine(cli, path, name).code == code
    assert files(path) == before


def test_what_was_never_committed_is_refused(cli: CommandLine, bench: Bench, folder: Path) -> None:
    from airflow_provider.core.records import RestoredRecord

    bench.own(2)
    bench.claim(2, k=2)
    found = RestoredRecord(
        checkpoint=NAME, reason="r", uncommitted=("attempts/000001/checkpoint_half",), created_at=NOW
    )
    bench.store.put_raw(layout.restored(1, 2), found.body())
    said = quarantine(cli, on_disk(bench, folder), "g000001/attempts/000001/checkpoint_half")
    assert said.code == NOT_FOUND
    assert "never committed" in said.err


def test_releasing_what_is_not_set_aside_is_refused(cli: CommandLine, path: Path) -> None:
    assert release(cli, path).code == NOT_FOUND


def test_leaving_nothing_to_restore_is_done_and_is_a_problem(cli: CommandLine, path: Path) -> None:
    for name in ("checkpoint_a", "checkpoint_b"):
        assert quarantine(cli, path, f"g000001/attempts/000001/{name}").code == OK
    said = quarantine(cli, path)
    assert said.code == PROBLEM
    assert "All 3 committed checkpoints are in quarantine" in " ".join(said.out.split())
    assert release(cli, path).code == OK


def test_a_running_attempts_own_suspicion_is_left_to_its_driver(cli: CommandLine, bench: Bench, folder: Path) -> None:
    """The driver rewrites the record without a condition: a person's word would be lost, or the experiment's finding."""
    bench.own(2)
    bench.claim(2, k=2)
    path = on_disk(bench, folder)
    write(path, attempt=2, is_suspicion=True)
    before = files(path)
    for said in (quarantine(cli, path), release(cli, path)):
        assert said.code == PROBLEM
        assert "is finding out whether" in said.err
    assert files(path) == before


def test_a_suspicion_that_lapsed_with_its_attempt_can_be_made_a_quarantine(cli: CommandLine, path: Path) -> None:
    write(path, is_suspicion=True)
    assert restores(path) == NAME
    assert quarantine(cli, path).code == OK
    assert restores(path) == "attempts/000001/checkpoint_b"


def test_a_record_that_changed_in_between_is_not_overwritten(
    cli: CommandLine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, released_by="g1/a1")
    original = LocalObjectStore.replace_if_match

    def late(self: LocalObjectStore, key: str, body: bytes, *, etag: str) -> str:
        write(path, reason="poison: y")  # the driver was faster
        return original(self, key, body, etag=etag)

    monkeypatch.setattr(LocalObjectStore, "replace_if_match", late)
    said = quarantine(cli, path)
    assert said.code == PROBLEM
    assert "Another process has written" in said.err
    assert record(path).reason == "poison: y"


@pytest.mark.parametrize("chosen", [NAME, layout.copy_name(2, NAME)])
def test_a_persons_word_is_about_its_copies_too(cli: CommandLine, bench: Bench, folder: Path, chosen: str) -> None:
    """An attempt restored a copy of it, which is what the newest manifest lists: the same files under another name."""
    from airflow_provider.core.manifest import Manifest, ManifestEntry
    from airflow_provider.core.records import RestoredRecord
    from tests.support.training_try import BODY

    copy = layout.copy_name(2, NAME)
    bench.own(2, try_number=2)
    bench.claim(2, k=2)
    bench.store.put_raw(f"g000001/{copy}/model.pt", BODY)
    older = ManifestEntry("attempts/000001/checkpoint_b")
    manifest = Manifest(entries=(older, ManifestEntry(copy)), latest=ManifestEntry(copy))
    bench.store.put_raw(layout.manifest(1, 2), manifest.body(ray_version="2.60.0"))
    restored = RestoredRecord(checkpoint=copy, reason="a copy of retired", created_at=NOW)
    bench.store.put_raw(layout.restored(1, 2), restored.body())
    bench.end("failed", attempt=2)
    path = on_disk(bench, folder)
    assert restores(path, attempt=3) == copy

    other = NAME if chosen == copy else copy
    said = quarantine(cli, path, f"g000001/{chosen}", "--json")
    assert (said.code, said.json["changed"], said.json["copies"]) == (OK, True, [f"g000001/{other}"])
    assert restores(path, attempt=3) == "attempts/000001/checkpoint_b"
    assert "its copy too: " in quarantine(cli, path, f"g000001/{other}").out
    assert release(cli, path, "--json").json["changed"] is True
    assert restores(path, attempt=3) == copy
