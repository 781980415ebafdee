"""Ray Train V1's run directories: listings, results and states. Nothing of a pickle is ever executed."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.core.layout_v1 import RunAnswer, parse_results, parse_run, plan_run, state_checkpoint
from airflow_provider.core.record_parts import CheckpointFile
from tests.support.damage import damaged_json, examples, is_utf8, only_typed_errors

TRIAL = "TorchTrainer_6eea7_00000_0_2026-11-19_23-51-06"
NAMES = st.sampled_from(
    [
        "trainer.pkl",
        "tuner.pkl",
        "experiment_state-2026.json",
        "checkpoint_000001",
        "checkpoint_final",
        TRIAL,
        "",
        "..",
        "a",
    ]
) | st.integers(0, 10**30).map("checkpoint_{}".format)
KEYS = st.lists(NAMES | st.text(max_size=4), min_size=1, max_size=4).map("/".join)
FILES = st.builds(CheckpointFile, key=KEYS, size=st.integers(0, 3))


class Bomb:
    """Unpickling it would leave a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


def state(value: bytes) -> dict[str, Any]:
    manager = json.dumps({"checkpoint_manager": {"_type": "CLOUDPICKLE_FALLBACK", "value": value.hex()}})
    return {"trial_data": [["{}", manager], ["{}", manager]], "runner_data": {}}


@given(st.lists(FILES, max_size=12))
@examples(150)
def test_a_run_with_files_of_a_run_is_never_none(files: list[CheckpointFile]) -> None:
    run = parse_run(files)
    if any(f.key in {"trainer.pkl", "tuner.pkl", "experiment_state-2026.json"} for f in files):
        assert run.answer is not RunAnswer.NONE
    assert (run.answer is RunAnswer.UNREADABLE) == bool(run.why_unreadable)
    plan = plan_run(
        checkpoint="attempts/000001/v1/a/checkpoint_1", run=run, state=None, is_same_spec=True, new_run_dir="n"
    )
    assert plan.checkpoint is not None


@given(damaged_json([state(b"trial/checkpoint_000002\x94")]))
@examples(150)
def test_a_state_names_a_checkpoint_or_none(body: bytes) -> None:
    with only_typed_errors():
        name = state_checkpoint(body)
        assert name is None or name.startswith("checkpoint_")


def test_a_pickle_in_a_state_is_not_executed(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    pickled = pickle.dumps([Bomb(str(trap)), "checkpoint_000007"])
    assert state_checkpoint(json.dumps(state(pickled)).encode()) == "checkpoint_000007"
    assert not trap.exists()
    pickle.loads(pickled)  # noqa: S301 - proves that it would have gone off
    assert trap.exists()


@given(st.lists(damaged_json([{"epoch": 1, "checkpoint_dir_name": "checkpoint_000001", "config": {}}]), max_size=4))
@examples(100)
def test_results_are_lines_of_metrics_that_can_be_stored(lines: list[bytes]) -> None:
    for report in parse_results(b"\n".join(lines)):
        assert is_utf8(report.checkpoint)
        json.dumps(report.metrics, ensure_ascii=False).encode()
