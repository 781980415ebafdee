"""A generation's parent on Airflow's side: decided once before the first claim, carried by every claim after it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider.core import layout
from airflow_provider.core.errors import (
    BucketNotFound,
    ForeignLayout,
    InvalidConfig,
    NoParentCheckpoint,
    RecordUnreadable,
)
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.record_parts import WarmStartRecord
from airflow_provider.core.records import ClaimRecord
from airflow_provider.core.run_index import index_uri
from airflow_provider.core.warm_start import WarmStart
from airflow_provider.operators.ray_train import RayTrainOperator
from airflow_provider.operators.training_try import TrainingTry
from airflow_provider.operators.warm_start import MAX_RUNS_BACK, WarmStarter, warm_starter
from tests.support.operator_run import World, running_world
from tests.support.parents import folder_of, uri_of, write_experiment
from tests.support.training_try import Bench, request

NIGHT = datetime(2026, 11, 29, 3, tzinfo=timezone.utc)


class Nights:
    """Nightly runs of one task on a shared folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.said = root, list[str]()

    def experiment(self, night: int) -> Path:
        return self.root / "d" / "train" / f"run-{night}"

    def starter(self, night: int, *, map_index: int = -1, **wanted: Any) -> WarmStarter:
        asked = request(
            key=TaskInstanceKey("d", f"run-{night}", "train", map_index),
            uri=str(self.experiment(night)),
            storage_path=str(self.root),
            warm_start=WarmStart(**{"source": "previous_run", "missing": "fresh", **wanted}),
        )
        found = warm_starter(asked, run_after=NIGHT + timedelta(days=night), log=self.said.append)
        assert found is not None
        return found

    def begin(self, night: int, **options: Any) -> str | None:
        """The parent of a first attempt."""
        decided = self.starter(night, **options).decide(before=None, has_own=False)
        assert decided is not None
        return decided.parent.uri if decided.parent else None


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    """Nothing ran yet."""
    (tmp_path / "models").mkdir()
    return Nights(tmp_path / "models")


def test_a_night_begins_where_the_night_before_ended(nights: Nights) -> None:
    assert nights.begin(1) is None
    write_experiment(nights.experiment(1), 0, 1)
    assert nights.begin(2) == uri_of(nights.experiment(1), 1)
    assert "of the earlier DAG run run-1 (2026-11-30 03:00:00 UTC)" in nights.said[-1]


def test_no_xcom_is_asked_and_a_failed_or_cleared_run_counts_by_what_it_committed(nights: Nights) -> None:
    """The bucket alone decides: what the earlier run's task came to is nobody's business here."""
    nights.begin(1)
    write_experiment(nights.experiment(1), 0)
    nights.begin(2)
    write_experiment(nights.experiment(2))
    nights.begin(3)
    assert nights.begin(3) == uri_of(nights.experiment(1), 0)
    assert "passed over DAG run run-2: no committed checkpoint" in nights.said[-1]
    write_experiment(nights.experiment(2), 5, generation=2)
    assert nights.begin(3) == uri_of(nights.experiment(2), 5, generation=2)


def test_catch_up_in_any_order_never_begins_from_a_later_run(nights: Nights) -> None:
    for night in (3, 1, 2):
        nights.begin(night)
        write_experiment(nights.experiment(night), night)
    assert nights.begin(2) == uri_of(nights.experiment(1), 1)
    assert nights.begin(1) is None
    assert nights.begin(4) == uri_of(nights.experiment(3), 3)


def test_map_indices_have_previous_runs_of_their_own(nights: Nights) -> None:
    nights.begin(1, map_index=0)
    write_experiment(nights.experiment(1), 0)
    assert nights.begin(2, map_index=1) is None
    assert nights.begin(2, map_index=0) == uri_of(nights.experiment(1), 0)


def test_a_run_made_again_under_its_id_does_not_begin_from_itself(nights: Nights) -> None:
    """A person deletes a manual run and triggers it anew: the same experiment, an earlier `run_after` in the records."""
    nights.begin(1)
    write_experiment(nights.experiment(1), 0)
    again = replace(nights.starter(1), run_after=NIGHT + timedelta(days=5))
    decided = again.decide(before=None, has_own=False)
    assert decided is not None
    assert decided.parent is None


def test_the_search_ends_somewhere(nights: Nights) -> None:
    for night in range(MAX_RUNS_BACK + 2):
        nights.begin(night)
    write_experiment(nights.experiment(0), 0)
    assert nights.begin(MAX_RUNS_BACK + 1) is None
    assert nights.begin(MAX_RUNS_BACK) == uri_of(nights.experiment(0), 0)


def test_without_a_parent_missing_decides_before_anything_is_claimed(nights: Nights) -> None:
    with pytest.raises(NoParentCheckpoint, match="no earlier DAG run"):
        nights.begin(1, missing="fail")
    assert list(nights.root.rglob("claim.json")) == []


def test_a_deleted_parent_is_missing_and_a_missing_share_is_not(nights: Nights, tmp_path: Path) -> None:
    gone = tmp_path / "base" / "v1"
    with pytest.raises(BucketNotFound):
        nights.begin(1, source=str(gone))
    gone.parent.mkdir()
    assert nights.begin(1, source=str(gone)) is None
    assert "nothing is there" in nights.said[-1]


def test_another_frameworks_parent_is_refused_whatever_missing_says(nights: Nights, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "MLmodel").write_bytes(b"x")
    with pytest.raises(ForeignLayout):
        nights.begin(1, source=str(tmp_path / "model"))


def test_a_parent_in_another_kind_of_storage_is_refused(nights: Nights) -> None:
    with pytest.raises(InvalidConfig, match="copy the parent"):
        nights.begin(1, source="s3://models/base")


# --- retries ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def bench() -> Bench:
    """The child's own bucket and cluster; its parent lies on the shared folder of `nights`."""
    return Bench()


def a_try(bench: Bench, nights: Nights, number: int, night: int = 2, **wanted: Any) -> TrainingTry:
    found = bench.new_try(number)
    found.warm_starter = nights.starter(night, **wanted)
    return found


def newest(bench: Bench) -> ClaimRecord:
    claim = bench.records.newest_claim()
    assert claim is not None
    return claim


def parent(bench: Bench) -> str | None:
    record = newest(bench).warm_start
    assert record is not None
    return record.parent.uri if record.parent else None


def first_try(bench: Bench, nights: Nights) -> str:
    nights.begin(1)
    write_experiment(nights.experiment(1), 0)
    found = a_try(bench, nights, 1)
    found.own()
    found.step()
    uri = parent(bench)
    assert uri == uri_of(nights.experiment(1), 0)
    return uri


def retry(bench: Bench, nights: Nights, **wanted: Any) -> None:
    bench.end("failed")
    again = a_try(bench, nights, 2, **wanted)
    again.own()
    again.step()
    assert newest(bench).attempt == 2


def test_a_retry_without_a_commit_begins_from_the_same_parent_although_a_newer_one_is_there(
    bench: Bench, nights: Nights
) -> None:
    uri = first_try(bench, nights)
    write_experiment(nights.experiment(1), 7, attempt=2)
    assert nights.begin(2) != uri, "a new look would find another parent"
    retry(bench, nights)
    assert parent(bench) == uri
    assert "the generation's first claim chose it" in nights.said[-1]
    told = [line for line in bench.said if "earlier attempts" in line]
    assert told == ["nothing of this generation to restore: no committed checkpoint in 1 earlier attempts"]
    assert not any("from the start" in line for line in bench.said), "it is not where it begins"


def test_a_retry_with_commits_restores_its_own_and_asks_nobody_about_the_parent(bench: Bench, nights: Nights) -> None:
    uri = first_try(bench, nights)
    (own,) = bench.commit("checkpoint_1")
    shutil.rmtree(nights.root)
    retry(bench, nights, missing="fail")
    assert newest(bench).checkpoint_seen == own
    assert parent(bench) == uri, "the edge stays in the records"


def test_a_parent_that_is_gone_before_the_first_commit_follows_missing(bench: Bench, nights: Nights) -> None:
    first_try(bench, nights)
    shutil.rmtree(folder_of(nights.experiment(1), 0))
    bench.end("failed")
    again = a_try(bench, nights, 2, missing="fail")
    again.own()
    with pytest.raises(NoParentCheckpoint, match="no file is left"):
        again.step()
    assert newest(bench).attempt == 1, "nothing was claimed"
    retry(bench, nights, missing="fresh")
    assert parent(bench) is None
    assert "no file is left" in nights.said[-1]


def test_a_generation_that_began_without_a_parent_gets_none_later(bench: Bench, nights: Nights) -> None:
    plain = bench.new_try(1)
    plain.own()
    plain.step()
    nights.begin(1)
    write_experiment(nights.experiment(1), 0)
    retry(bench, nights)
    assert newest(bench).warm_start is None
    assert "warm_start has no effect" in nights.said[-1]


def test_a_cleared_training_looks_for_a_parent_anew(bench: Bench, nights: Nights) -> None:
    first_try(bench, nights)
    write_experiment(nights.experiment(1), 7, attempt=2)
    bench.end("failed")
    cleared = bench.new_try(2, max_tries=5, on_clear="fresh")
    cleared.warm_starter = nights.starter(2)
    cleared.own()
    cleared.step()
    assert newest(bench).generation == 2
    assert parent(bench) == uri_of(nights.experiment(1), 7, attempt=2)


def test_the_job_carries_the_claims_decision(bench: Bench, nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent again under its id, a job begins where its claim says, not where a new look would lead."""
    sent: list[JobSpec] = []
    from airflow_provider.operators import training_try

    packed = training_try.runtime_package
    monkeypatch.setattr(training_try, "runtime_package", lambda spec, **more: sent.append(spec) or packed(spec, **more))
    uri = first_try(bench, nights)
    write_experiment(nights.experiment(1), 7, attempt=2)
    bench.client.jobs.clear()
    again = a_try(bench, nights, 2)
    again.own()
    again.step()
    assert newest(bench).attempt == 1, "sent again"
    assert [s.warm_start.parent.uri for s in sent if s.warm_start and s.warm_start.parent] == [uri, uri]


def test_a_warm_start_changes_no_digest(nights: Nights) -> None:
    asked = nights.starter(1).request
    assert asked.spec_digest == replace(asked, warm_start=None).spec_digest


# --- the operator ----------------------------------------------------------------------------------------------------


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with running_world(monkeypatch) as world:
        yield world


def test_the_operator_records_result_and_edge(world: World, tmp_path: Path) -> None:
    base = write_experiment(tmp_path / "base" / "run", 3)
    trigger = world.defer(world.operator(warm_start=str(base)))
    claim = world.records.newest_claim()
    assert claim is not None
    assert isinstance(claim.warm_start, WarmStartRecord)
    world.succeed(trigger)
    result = world.resume(trigger)
    assert result["warm_started_from"] == uri_of(base, 3)


def test_a_run_that_asks_for_none_says_none(world: World) -> None:
    trigger = world.defer()
    world.succeed(trigger)
    assert world.resume(trigger)["warm_started_from"] is None


def test_a_missing_parent_fails_the_task_typed_and_without_a_job(world: World, tmp_path: Path) -> None:
    with pytest.raises(NoParentCheckpoint):
        world.operator(warm_start=str(tmp_path / "nothing")).execute(world.task.context)
    assert world.server.jobs == {}
    failure = world.task.ti.xcoms["ray_train_failure"]
    assert (failure["kind"], failure["retryable"]) == ("checkpoint", False)
    assert world.bench.store.read(layout.claim(1, 1)) is None


@pytest.mark.parametrize("wrong", ["models/x", {"rows": 3}, {"source": "previous_run", "missing": "maybe"}, 7])
def test_a_wrong_value_is_found_when_the_dag_is_parsed(wrong: Any) -> None:
    with pytest.raises(InvalidConfig):
        RayTrainOperator(task_id="t", storage_path="s3://models/x", train_loop="m:f", warm_start=wrong)


def test_best_takes_the_checkpoint_configs_score() -> None:
    from airflow_provider.operators.parameters import warm_start

    operator = RayTrainOperator(
        task_id="t",
        storage_path="s3://models/x",
        train_loop="m:f",
        checkpoint_config={"checkpoint_score_attribute": "loss", "checkpoint_score_order": "min"},
        warm_start=WarmStart(source="previous_run", select="best"),
    )
    found = warm_start(operator)
    assert found is not None
    assert (found.policy.metric, found.policy.order) == ("loss", "min")
    with pytest.raises(InvalidConfig, match="metric"):
        RayTrainOperator(
            task_id="t",
            storage_path="s3://models/x",
            train_loop="m:f",
            warm_start=WarmStart(source="previous_run", select="best"),
        )


def test_another_tasks_output_is_a_source_and_an_upstream() -> None:
    with DAG("two", schedule=None):
        known = {"storage_path": "s3://models/x", "train_loop": "m:f"}
        base = RayTrainOperator(task_id="base", **known)
        plain = RayTrainOperator(task_id="plain", warm_start=base.output, **known)
        full = RayTrainOperator(
            task_id="full", warm_start=WarmStart(source=base.output, select="best", missing="fresh"), **known
        )
    assert (plain.upstream_task_ids, full.upstream_task_ids) == ({"base"}, {"base"})
    assert plain.warm_start is not None
    assert plain.warm_start["source"] is base.output or str(plain.warm_start["source"]) == str(base.output)


def test_a_torn_run_record_is_an_error_that_names_it(nights: Nights) -> None:
    nights.begin(1)
    folder = Path(index_uri(str(nights.root), TaskInstanceKey("d", "any", "train")))
    (record,) = folder.glob("*.json")
    record.write_bytes(b"{")
    with pytest.raises(RecordUnreadable, match=record.name):
        nights.begin(2)


def test_run_records_lie_beside_the_experiments(nights: Nights) -> None:
    nights.begin(1)
    folder = Path(index_uri(str(nights.root), TaskInstanceKey("d", "any", "train")))
    assert folder.parent == nights.experiment(1).parent
    assert len(list(folder.glob("*.json"))) == 1
