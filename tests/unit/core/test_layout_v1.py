"""A V1 run directory from listings that people really had; a wrong "latest" trains days for nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider.core.layout_v1 import (
    ModeV1,
    RunAnswer,
    RunV1,
    parse_results,
    parse_run,
    plan_run,
    run_dir,
    run_of,
    starter_of,
    state_checkpoint,
)
from airflow_provider.core.record_parts import CheckpointFile

CASES = Path(__file__).parents[2] / "fixtures" / "cases"
NEW = run_dir(2)
OLD = "attempts/000001/v1"
CHECKPOINT = f"{OLD}/TorchTrainer_6eea7_00000_0_2026-11-19_23-51-06/checkpoint_000004"


def listing(case: str, prefix: str) -> list[CheckpointFile]:
    """A recorded bucket listing below a prefix."""
    found = []
    for item in json.loads((CASES / case / "listing.json").read_text())["objects"]:
        if item["key"].startswith(prefix):
            size = item.get(
                "size",
                len(item.get("text", "")) or (CASES / case / item.get("file", ".")).stat().st_size * ("file" in item),
            )
            found.append(CheckpointFile(key=item["key"].removeprefix(prefix), size=size))
    return found


@pytest.mark.scenario("C04")
def test_an_empty_state_file_is_neither_no_run_nor_a_run() -> None:
    """C04: a crash left 0 bytes; a fresh start into the same directory would write over the checkpoints."""
    run = parse_run(listing("C04", "train/v1exp/"))
    assert run.answer is RunAnswer.UNREADABLE
    assert "trainer.pkl has 0 bytes" in run.why_unreadable
    assert [c.name.rpartition("/")[2] for c in run.checkpoints] == ["checkpoint_000001"]


@pytest.mark.scenario("C06")
def test_numbers_order_checkpoints_and_other_names_are_no_candidates() -> None:
    """C06: text order puts checkpoint_9 last, and `checkpoint_manager_snapshot.json` begins like a checkpoint."""
    run = parse_run(listing("C06", "train/v1/"))
    expected = json.loads((CASES / "C06" / "expect.json").read_text())
    assert [c.name.rpartition("/")[2] for c in run.checkpoints] == expected["index_order"]
    assert run.latest is not None
    assert run.latest.name.endswith(expected["selected"])
    assert [name.rpartition("/")[2] for name in run.named] == ["checkpoint_final"]


@pytest.mark.scenario("C12")
def test_folder_markers_are_neither_files_nor_checkpoints() -> None:
    """C12: some tools leave 0-byte objects for folders, also after the folder's content is gone."""
    run = parse_run(listing("C12", "train/m/"))
    expected = json.loads((CASES / "C12" / "expect.json").read_text())
    assert run.latest is not None
    assert run.latest.name == expected["selected"]
    assert list(run.empty) == expected["empty"]


@pytest.mark.scenario("C20")
def test_checkpoints_lie_in_the_trials_folder_and_the_newest_state_counts() -> None:
    """C20: two experiment states after a restore; the trial's folder is no checkpoint itself."""
    run = parse_run(listing("C20", "train/v1exp/"))
    assert run.answer is RunAnswer.FOUND
    assert run.latest is not None
    assert f"train/v1exp/{run.latest.name}" == json.loads((CASES / "C20" / "expect.json").read_text())["selected"]
    assert run.newest_state == "experiment_state-2026-11-20_08-00-00.json"
    assert len(run.trials) == 1


def test_nothing_there_is_no_run() -> None:
    """A storage marker alone says nothing."""
    assert parse_run([CheckpointFile(key=".validate_storage_marker", size=0)]).answer is RunAnswer.NONE


def test_a_state_tells_which_checkpoint_restore_would_take() -> None:
    """Ray pickles the checkpoint manager into the state; only its names are read, nothing is executed."""
    pickled = b"\x80\x05...trial/checkpoint_000002\x94...trial/checkpoint_000010\x94 checkpoint_000099.tmp"
    metadata = json.dumps({"checkpoint_manager": {"_type": "CLOUDPICKLE_FALLBACK", "value": pickled.hex()}})
    assert state_checkpoint(json.dumps({"trial_data": [["{}", metadata]]}).encode()) == "checkpoint_000010"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"trial_data": [["{}", "{}"]]}',
        b'{"trial_data": [["{}", "{\\"checkpoint_manager\\": {\\"value\\": \\"zz\\"}}"]]}',
    ],
)
def test_a_state_that_cannot_be_read_names_no_checkpoint(body: bytes) -> None:
    """Torn, foreign or hand-made: the attempt then resumes in a new directory instead of trusting it."""
    assert state_checkpoint(body) is None


def test_results_keep_the_trainings_own_metrics() -> None:
    """Tune adds host names and the whole train loop config, which may hold a secret (G11)."""
    line = {
        "epoch": 3,
        "checkpoint_dir_name": "checkpoint_000003",
        "config": {"train_loop_config": {"key": "s"}},
        "hostname": "h",
    }
    first, second = parse_results(json.dumps(line).encode() + b'\n{"epoch": 4}\n{"epo')
    assert (first.checkpoint, first.metrics) == ("checkpoint_000003", {"epoch": 3})
    assert second.checkpoint is None


def found(*, answer: RunAnswer = RunAnswer.FOUND) -> RunV1:
    """The run directory of attempt 1."""
    return RunV1(answer, trials=("TorchTrainer_6eea7_00000_0_x",), why_unreadable="trainer.pkl has 0 bytes")


def test_an_unchanged_request_restores_the_run_directory() -> None:
    """The mission: a retry is Trainer.restore on the experiment path."""
    plan = plan_run(checkpoint=CHECKPOINT, run=found(), state="checkpoint_000004", is_same_spec=True, new_run_dir=NEW)
    assert (plan.mode, plan.run_dir) == (ModeV1.RESTORE, OLD)


@pytest.mark.parametrize(
    ("run", "state", "is_same_spec", "why"),
    [
        (found(), "checkpoint_000003", True, "restore would go on from checkpoint_000003"),
        (found(), None, True, "restore would go on from the start"),
        (found(), "checkpoint_000004", False, "ignores a new train_loop_config"),
        (found(answer=RunAnswer.UNREADABLE), "checkpoint_000004", True, "trainer.pkl has 0 bytes"),
        (None, None, True, "no V1 run directory"),
    ],
)
def test_what_restore_would_get_wrong_resumes_in_a_new_directory(
    run: RunV1 | None, state: str | None, is_same_spec: bool, why: str
) -> None:
    """Ray's restore takes the newest checkpoint it knows, with the old config; neither may happen quietly."""
    plan = plan_run(checkpoint=CHECKPOINT, run=run, state=state, is_same_spec=is_same_spec, new_run_dir=NEW)
    assert (plan.mode, plan.run_dir, plan.checkpoint) == (ModeV1.RESUME, NEW, CHECKPOINT)
    assert why in plan.reason


def test_no_checkpoint_starts_in_a_directory_of_its_own() -> None:
    """What an earlier attempt left without a commit is not written over."""
    plan = plan_run(checkpoint=None, run=None, state=None, is_same_spec=False, new_run_dir=NEW)
    assert (plan.mode, plan.run_dir) == (ModeV1.START, NEW)


def test_names_tell_their_run_directory() -> None:
    """A refit has a directory of its own; a copy or a V2 checkpoint lies in none."""
    assert (run_of(CHECKPOINT), starter_of(CHECKPOINT)) == (OLD, 1)
    assert run_of(f"{run_dir(3, 2)}/T_6eea7_00000/checkpoint_000001") == "attempts/000003/v1-2"
    assert run_of("attempts/000001/checkpoint_2026-11-20_10-00-00.000001") is None
