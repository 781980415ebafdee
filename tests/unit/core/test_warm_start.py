"""What an author may name as parent, what lies there, and the decision with its reason."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.core.errors import ForeignLayout, InvalidConfig, NoParentCheckpoint
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.parent import (
    MAX_FILES,
    Layout,
    Unusable,
    Usable,
    conclude_again,
    conclude_warm_start,
    inside_experiment,
    judge_layout,
    parent_of,
    verify_parent,
)
from airflow_provider.core.record_parts import CheckpointFile, ParentCheckpoint, WarmStartRecord
from airflow_provider.core.records import ClaimRecord
from airflow_provider.core.restore import Verdict
from airflow_provider.core.warm_start import Named, NothingNamed, PreviousRun, WarmStart, read_source
from tests.support.experiment import claim

URI = "s3://models/churn/train/run-1/g000001/attempts/000002/checkpoint_7"
FILES = [CheckpointFile(key="b", size=2, etag="e2"), CheckpointFile(key="a", size=1, etag="e1")]


def source_of(value: object, **more: Any) -> object:
    return read_source(WarmStart.rendered(WarmStart.given(value), parameter="warm_start").model_copy(update=more))


RESULT = {
    "state": "success",
    "experiment": "s3://models/x",
    "latest_checkpoint": {"uri": "s3://models/x/c9", "metrics": {"epoch": 9}},
    "best_checkpoint": {"uri": "s3://models/x/c4"},
}
EVENT = {"checkpoint": "s3://models/x/c4", "metrics": {"accuracy": 0.9}, "experiment": "s3://models/x", "epoch": 4}


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("previous_run", PreviousRun()),
        ("s3://models/base/", Named("s3://models/base")),
        ("file:///shared/base", Named("/shared/base")),
        (EVENT, Named("s3://models/x/c4")),
        ({"uri": "s3://models/model", "extra": EVENT}, Named("s3://models/x/c4")),
        (RESULT, Named("s3://models/x/c9")),
        ({"experiment": "s3://models/x"}, Named("s3://models/x")),
        ({"checkpoint": "s3://models/x/c4"}, Named("s3://models/x/c4")),
    ],
)
def test_every_source_is_understood(value: object, meant: object) -> None:
    assert source_of(value) == meant


def test_the_best_of_a_result_is_its_best_checkpoint_or_decided_by_metric_in_its_experiment() -> None:
    assert source_of(RESULT, select="best") == Named("s3://models/x/c4")
    assert source_of({**RESULT, "best_checkpoint": None}, select="best") == Named("s3://models/x")


@pytest.mark.parametrize("value", [{"source": None}, "None", "", {**RESULT, "latest_checkpoint": None}])
def test_a_source_that_rendered_to_nothing_is_missing_and_no_error(value: object) -> None:
    assert isinstance(source_of(value), NothingNamed)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"rows": 7, "table": "x"}, "rows, table"),
        ({"extra": {}}, "it holds nothing"),
        ({"checkpoint": 7}, "names no checkpoint"),
        ("models/base", "neither s3://"),
        ("s3://models//x", "empty"),
        ("{'checkpoint': 's3://models/x'}", "render_template_as_native_obj"),
    ],
)
def test_what_names_no_parent_is_a_typed_error_that_says_what_it_got(value: object, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        source_of(value)


def test_a_secret_in_a_foreign_event_is_not_repeated() -> None:
    with pytest.raises(InvalidConfig) as error:
        source_of({"s3cr3t=abc": "value-of-it", "token": "value-of-it"})
    assert "value-of-it" not in str(error.value)
    assert "s3cr3t" not in str(error.value)


@pytest.mark.parametrize("wrong", [{"select": "newest"}, {"missing": "ignore"}, {"order": "up"}, {"sauce": "s3://x"}])
def test_wrong_words_are_found_when_the_dag_is_parsed(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig, match="warm_start"):
        WarmStart.given({"source": "previous_run", **wrong})


def test_templates_pass_at_any_depth() -> None:
    given = WarmStart.given({"source": {"checkpoint": "{{ params.parent }}"}, "missing": "{{ params.missing }}"})
    assert given is not None
    assert given["source"] == {"checkpoint": "{{ params.parent }}"}


def test_best_needs_a_metric() -> None:
    with pytest.raises(InvalidConfig, match="metric"):
        _ = WarmStart(source="previous_run", select="best").policy
    policy = WarmStart(source="previous_run", select="best", metric="loss", order="min").policy
    assert (policy.mode, policy.metric, policy.order) == ("best", "loss", "min")


def test_a_checkpoint_of_ours_is_known_by_its_path() -> None:
    assert inside_experiment(URI) == ("s3://models/churn/train/run-1", 1, "attempts/000002/checkpoint_7")
    assert inside_experiment("/m/e/g000002/checkpoint_1") == ("/m/e", 2, "checkpoint_1")
    assert inside_experiment("s3://models/e/g000001") is None
    assert inside_experiment("s3://models/e/g000001/attempts") is None


@pytest.mark.parametrize(
    ("objects", "folders", "kind"),
    [
        ((), ("owners", "g000001"), Layout.EXPERIMENT),
        (("checkpoint_manager_snapshot.json",), ("checkpoint_1",), Layout.RAY_RUN),
        (("trainer.pkl",), ("TorchTrainer_x",), Layout.RAY_RUN_V1),
        (("state.pt",), (), Layout.CHECKPOINT),
        ((), ("checkpoint",), Layout.CHECKPOINT),
        (("latest", "zero_to_fp32.py"), ("global_step100",), Layout.CHECKPOINT),
        ((), (), Layout.NOTHING),
    ],
)
def test_what_a_folder_is(objects: tuple[str, ...], folders: tuple[str, ...], kind: Layout) -> None:
    assert judge_layout("s3://m/x", objects=objects, folders=folders) is kind


@pytest.mark.parametrize(
    ("objects", "folders", "said"),
    [
        (("MLmodel", "model.pkl"), (), "MLflow"),
        (("meta.yaml",), ("artifacts",), "MLflow"),
        (("trainer_state.json", "model.safetensors"), (), "Hugging Face"),
        (("saved_model.pb",), ("variables",), "TensorFlow"),
        (("config.json",), ("checkpoint-500", "checkpoint-1000"), "folder of checkpoints"),
        ((), ("version_0",), "folder of checkpoints"),
        (("result.json",), ("checkpoint_000001",), "folder of checkpoints"),
    ],
)
def test_another_frameworks_layout_is_refused(objects: tuple[str, ...], folders: tuple[str, ...], said: str) -> None:
    with pytest.raises(ForeignLayout, match=said) as error:
        judge_layout("s3://m/x", objects=objects, folders=folders)
    assert error.value.failure.kind is FailureKind.CONFIG


def test_the_first_usable_parent_is_taken_and_what_was_passed_over_is_said() -> None:
    looks = [
        Unusable("run 3", "no committed checkpoint"),
        Usable(parent_of(URI, FILES, metrics={}), "it is the latest"),
    ]
    record = conclude_warm_start(looks, what="an earlier run", missing="fail")
    assert record.parent is not None
    assert record.parent.uri == URI
    assert record.reason == (
        f"warm start from {URI} because it is the latest; passed over run 3: no committed checkpoint"
    )


def test_without_a_parent_missing_decides() -> None:
    looks = [Unusable("s3://m/x", "nothing is there")]
    fresh = conclude_warm_start(looks, what="s3://m/x", missing="fresh")
    assert fresh.parent is None
    assert "nothing is there" in fresh.reason
    with pytest.raises(NoParentCheckpoint, match="nothing is there") as error:
        conclude_warm_start(looks, what="s3://m/x", missing="fail")
    assert error.value.failure.kind is FailureKind.CHECKPOINT
    assert not error.value.failure.is_retryable


def test_many_looks_make_no_endless_sentence() -> None:
    looks = [Unusable(f"run {n}", "nothing") for n in range(20)]
    assert "and 17 more" in conclude_warm_start(looks, what="x", missing="fresh").reason


def test_a_retry_keeps_the_recorded_parent_or_says_that_it_is_gone() -> None:
    recorded = WarmStartRecord(parent=parent_of(URI, FILES, metrics={}), reason="first")
    again = conclude_again(recorded, Verdict(is_usable=True, why="all there"), missing="fail")
    assert again.parent == recorded.parent
    gone = Verdict(is_usable=False, why="no file is left of it")
    with pytest.raises(NoParentCheckpoint, match="no file is left"):
        conclude_again(recorded, gone, missing="fail")
    assert conclude_again(recorded, gone, missing="fresh").parent is None
    without = WarmStartRecord(parent=None, reason="fresh")
    assert conclude_again(without, gone, missing="fail") == without


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], "no file"),
        (FILES[:1], "a is missing"),
        ([FILES[0], CheckpointFile(key="a", size=9)], "9 bytes instead of 1"),
        ([FILES[0], CheckpointFile(key="a", size=1, etag="other")], "written again"),
    ],
)
def test_a_changed_parent_is_noticed(found: list[CheckpointFile], said: str) -> None:
    parent = parent_of(URI, FILES, metrics={})
    assert verify_parent(parent, FILES).is_usable
    verdict = verify_parent(parent, found)
    assert not verdict.is_usable
    assert said in verdict.why


def test_of_a_huge_parent_the_claim_keeps_some_names_and_the_count_of_all() -> None:
    files = [CheckpointFile(key=f"shard-{n:05d}", size=1) for n in range(MAX_FILES + 5)]
    parent = parent_of(URI, files, metrics={})
    assert (len(parent.files), parent.num_files, parent.size_bytes) == (MAX_FILES, MAX_FILES + 5, MAX_FILES + 5)
    assert verify_parent(parent, files).is_usable
    assert not verify_parent(parent, files[:-1]).is_usable


def test_claims_carry_the_parent_and_older_claims_have_none() -> None:
    record = WarmStartRecord(parent=ParentCheckpoint(uri=URI, files=tuple(FILES), num_files=2), reason="because")
    body = claim(1, 1, warm_start=record).body()
    assert ClaimRecord.parse(body, key="claim.json").warm_start == record
    older = claim(1, 1).model_dump(mode="json")
    del older["warm_start"]
    parsed = ClaimRecord.model_validate(older)
    assert parsed.warm_start is None
