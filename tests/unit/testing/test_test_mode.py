"""The test mode shows of a DAG what a real cluster would: each way a training ends, in both modes."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, task

from airflow_provider.assets.model import GatedAsset, newest_model
from airflow_provider.core import layout
from airflow_provider.core.errors import InvalidConfig, RayJobFailed
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.operators.ray_train import RayTrainOperator
from airflow_provider.sensors.errors import TrainingFailed, WaitTimedOut
from airflow_provider.sensors.ray_train import RayTrainSensor
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.testing.cluster import RayTrainCluster, UnusedOutcomes
from airflow_provider.testing.jobs_api_parts import Fault
from airflow_provider.testing.outcomes import (
    CommitsNothing,
    DriverLost,
    FailsWith,
    NeverEnds,
    Outcome,
    Succeeds,
    Unreachable,
    UserError,
)
from airflow_provider.testing.supervisor import NotInTestMode

BOTH = pytest.mark.parametrize("deferrable", [True, False], ids=["deferrable", "blocking"])
STORAGE = "s3://models/churn"


def operator(**changes: Any) -> RayTrainOperator:
    known: dict[str, Any] = {
        "task_id": "train",
        "storage_path": STORAGE,
        "train_loop": "churn.training:train_loop",
        "train_loop_config": {"epochs": "{{ params.epochs }}", "run": "{{ run_id }}"},
        "checkpoint_config": {"checkpoint_score_attribute": "accuracy"},
        "retries": 2,
    }
    with DAG("churn", schedule=None, params={"epochs": 3}, render_template_as_native_obj=True):
        return RayTrainOperator(**{**known, **changes})


def sensor(**changes: Any) -> RayTrainSensor:
    known: dict[str, Any] = {
        "task_id": "wait",
        "storage_path": STORAGE,
        "external_dag_id": "churn",
        "external_task_id": "train",
        "timeout": timedelta(hours=6),
    }
    with DAG("watch", schedule=None):
        return RayTrainSensor(**{**known, **changes})


@BOTH
def test_a_lost_driver_is_restored_by_the_retry(ray_train_cluster: RayTrainCluster, deferrable: bool) -> None:
    outcomes = [
        DriverLost({"epoch": 0, "accuracy": 0.5}, {"epoch": 1, "accuracy": 0.9}),
        Succeeds({"epoch": 2, "accuracy": 0.8}),
    ]
    run = ray_train_cluster.run(operator(deferrable=deferrable), outcomes=outcomes, conf={"epochs": 2})
    assert [one.state for one in run.tries] == ["up_for_retry", "success"], run.error
    assert [one.num_deferrals for one in run.tries] == ([1, 1] if deferrable else [0, 0])
    first, second = run.submissions
    assert (first.spec.ref.attempt, second.spec.ref.attempt) == (1, 2)
    assert first.train_loop_config == {"epochs": 2, "run": "test__1"}
    assert first.restored_checkpoint is None
    assert second.restored_checkpoint == f"{run.return_value['experiment']}/g000001/attempts/000001/checkpoint_000001"
    assert run.decision.startswith("g1/a1 ended FAILED (infrastructure: the job's supervisor died")
    assert run.decision.endswith("restoring as g1/a2")
    assert "infrastructure" in (run.tries[0].retry_reason or "")
    assert run.tries[0].xcoms["ray_train_failure"]["kind"] == "infrastructure"
    result = run.return_value
    assert (result["attempts"], result["tries"], result["new_checkpoints"]) == (2, 2, 3)
    assert result["latest_checkpoint"]["metrics"] == {"epoch": 2, "accuracy": 0.8}
    assert result["best_checkpoint"]["metrics"] == {"epoch": 1, "accuracy": 0.9}
    lineage = run.xcoms["checkpoint_lineage"]
    assert [c["parent"] for c in lineage["checkpoints"]][1:] == [c["name"] for c in lineage["checkpoints"]][:-1]


@BOTH
@pytest.mark.parametrize(
    ("outcome", "kind", "num_jobs"),
    [
        (UserError({"epoch": 0}, exception="KeyError: 'lr'"), FailureKind.USER, 1),
        (NeverEnds({"epoch": 0}), FailureKind.TIMEOUT, 1),
        (FailsWith(FailureKind.PREEMPTION), FailureKind.PREEMPTION, 3),
    ],
    ids=["user error", "deadline", "preemption"],
)
def test_how_a_training_fails_decides_about_retries(
    ray_train_cluster: RayTrainCluster, outcome: Outcome, kind: FailureKind, num_jobs: int, deferrable: bool
) -> None:
    run = ray_train_cluster.run(operator(deferrable=deferrable, timeout_s=7200), outcomes=[outcome] * num_jobs)
    assert (run.state, len(run.tries), len(run.submissions)) == ("failed", num_jobs, num_jobs)
    assert isinstance(run.error, RayJobFailed)
    assert run.error.failure.kind is kind
    assert run.return_value is None
    if kind is FailureKind.USER:
        assert "KeyError: 'lr'" in str(run.error)
    if kind is FailureKind.TIMEOUT:
        assert 7200 <= ray_train_cluster.clock.skipped_s < 8000


@BOTH
def test_a_cluster_that_is_away_is_attached_to_by_the_next_try(
    ray_train_cluster: RayTrainCluster, deferrable: bool
) -> None:
    outcomes = [Unreachable({"epoch": 0}, then=Succeeds({"epoch": 1}))]
    run = ray_train_cluster.run(operator(deferrable=deferrable), outcomes=outcomes)
    assert [one.state for one in run.tries] == ["up_for_retry", "success"], run.error
    assert len(run.submissions) == 1, "no second job beside one that trains"
    assert run.tries[0].xcoms["ray_train_failure"]["kind"] == "network"
    assert "RUNNING" in run.tries[1].decisions[0]
    assert run.return_value["latest_checkpoint"]["metrics"] == {"epoch": 1}
    assert ray_train_cluster.clock.skipped_s >= 1800


WATCHED: dict[str, tuple[dict[str, Any], list[Outcome]]] = {
    "stall": ({"stall_timeout_s": 600.0}, [NeverEnds({"epoch": 0})]),
    "deadline": ({"timeout_s": 7200.0}, [NeverEnds({"epoch": 0})]),
    "ignored checkpoint": (
        {"progress_metric": "epoch", "retries": 1},
        [DriverLost({"epoch": 3}), Succeeds({"epoch": 0})],
    ),
}


@pytest.mark.parametrize("name", WATCHED)
def test_a_driver_that_a_watch_ends_writes_its_outcome_and_no_more(
    ray_train_cluster: RayTrainCluster, name: str
) -> None:
    """A thread ends the real one in the middle of the fit: nobody publishes the manifest, chooses the best or finishes."""
    options, outcomes = WATCHED[name]
    run = ray_train_cluster.run(operator(**{"retries": 0, **options}), outcomes=outcomes)
    assert run.state == "failed"
    store, n = ray_train_cluster.experiment(run.submissions[0].spec.experiment_uri), len(outcomes)
    records = ExperimentRecords(store)
    outcome = records.outcome(AttemptRef(generation=1, attempt=n))
    assert outcome is not None
    assert outcome.failure is not None
    assert (outcome.best_checkpoint, outcome.num_commits) == (None, 1)
    assert store.read(layout.published_manifest(1)) is None
    segment = store.read(layout.segment(1, n, "000001"))
    assert segment is not None
    assert b"finishing" not in segment.body


def test_what_is_submitted_can_be_looked_at(ray_train_cluster: RayTrainCluster) -> None:
    run = ray_train_cluster.run(
        operator(
            scaling_config={"num_workers": 4, "use_gpu": True},
            runtime_env={"env_vars": {"WANDB_MODE": "offline"}},
            working_dir=".",
            entrypoint_num_cpus=2,
            max_retry_delay=timedelta(hours=1),
        )
    )
    (job,) = run.submissions
    assert (job.scaling.num_workers, job.scaling.use_gpu) == (4, True)
    assert job.runtime_env["env_vars"]["WANDB_MODE"] == "offline"
    assert job.request["entrypoint_num_cpus"] == 2
    assert any(name.endswith("test_test_mode.py") for name in job.files)
    assert job.entrypoint == "python -m airflow_provider.runtime.driver"
    assert run.last.rendered["train_loop_config"] == {"epochs": 3, "run": run.run_id}


def test_asset_events_carry_the_checkpoint_and_gates_hold(ray_train_cluster: RayTrainCluster) -> None:
    outlets = [
        Asset("churn_model"),
        GatedAsset(Asset("churn_promoted"), metric="accuracy", mode="max", better_than_last=True),
    ]
    task = operator(outlets=outlets)
    first = ray_train_cluster.run(task, outcomes=[Succeeds({"accuracy": 0.8})])
    worse = ray_train_cluster.run(task, outcomes=[Succeeds({"accuracy": 0.7})])
    assert {event.asset for event in first.asset_events} == {"churn_model", "churn_promoted"}
    assert [event.asset for event in worse.asset_events] == ["churn_model"]
    assert worse.return_value["published"]["churn_promoted"]["published"] is False
    best = first.return_value["best_checkpoint"]["uri"]
    assert [event.extra["checkpoint"] for event in first.asset_events] == [best, best]
    assert [event.asset.name for event in ray_train_cluster.airflow.events].count("churn_promoted") == 1


def test_a_training_begins_from_another_ones_checkpoint(ray_train_cluster: RayTrainCluster) -> None:
    task = operator(warm_start={"source": "previous_run", "missing": "fresh"})
    lost = ray_train_cluster.run(task, outcomes=[DriverLost({"accuracy": 0.5})] * 3)
    assert (lost.state, lost.submissions[0].warm_started_from) == ("failed", None)
    child = ray_train_cluster.run(task)
    newest = f"{lost.submissions[0].spec.experiment_uri}/g000001/attempts/000003/checkpoint_000000"
    assert child.submissions[0].warm_started_from == newest
    by_xcom = operator(task_id="tune", warm_start="{{ ti.xcom_pull('pick') }}")
    run = ray_train_cluster.run(by_xcom, xcoms={"pick": child.return_value})
    assert run.submissions[0].warm_started_from == child.return_value["latest_checkpoint"]["uri"]


def test_the_same_dag_run_again_is_a_clear(ray_train_cluster: RayTrainCluster) -> None:
    task = operator()
    failed = ray_train_cluster.run(task, outcomes=[DriverLost({"epoch": 0}), UserError({"epoch": 1})])
    again = ray_train_cluster.run(task, run_id=failed.run_id)
    assert (again.state, again.last.try_number) == ("success", 3)
    assert again.submissions[0].spec.ref.rank == (1, 3), "a clear of a failed training restores"
    fresh = ray_train_cluster.run(task, run_id=failed.run_id)
    assert fresh.submissions[0].spec.ref.rank == (2, 1), "a clear of a finished one trains anew"
    other = ray_train_cluster.run(task)
    assert other.run_id != failed.run_id
    assert other.submissions[0].spec.experiment_uri != failed.submissions[0].spec.experiment_uri


@BOTH
@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_a_sensor_sees_the_same_bucket(ray_train_cluster: RayTrainCluster, deferrable: bool, mode: str) -> None:
    trained = ray_train_cluster.run(operator(), outcomes=[Succeeds({"loss": 0.9}, {"loss": 0.2})])
    how = {"deferrable": deferrable, "mode": mode}
    seen = ray_train_cluster.run(sensor(until="loss < 0.3", **how), run_id=trained.run_id)
    assert seen.state == "success", seen.error
    assert seen.return_value["checkpoint"]["uri"] == trained.return_value["latest_checkpoint"]["uri"]
    never = ray_train_cluster.run(sensor(until="end", **how, external_run_id="another"))
    assert (never.state, len(never.tries)) == ("failed", 1)
    assert isinstance(never.error, WaitTimedOut)
    assert ray_train_cluster.clock.skipped_s > 6 * 3600 - 60
    for outcome in (UserError(), NeverEnds()):
        failed = ray_train_cluster.run(operator(timeout_s=7200), outcomes=[outcome])
        over = ray_train_cluster.run(sensor(**how), run_id=failed.run_id)
        assert isinstance(over.error, TrainingFailed)


def test_tasks_of_a_dag_run_find_each_other(ray_train_cluster: RayTrainCluster) -> None:
    """By a mapped training's index, by its output as an argument, and by its output in a template."""
    with DAG("sweep", schedule=None) as dag:
        train = RayTrainOperator.partial(task_id="train", storage_path=STORAGE, train_loop="a:b").expand(
            train_loop_config=[{"lr": 0.1}, {"lr": 0.2}]
        )
        RayTrainSensor(task_id="second", storage_path=STORAGE, external_task_id="train", external_map_index=1)
        RayTrainOperator(
            task_id="tune",
            storage_path=STORAGE,
            train_loop="a:b",
            train_loop_config={"parents": "{{ ti.xcom_pull('train') | map(attribute='attempts') | list }}"},
        )
        RayTrainSensor.partial(task_id="each").expand(experiment=train.output)
    one = ray_train_cluster.run(dag.get_task("train"), map_index=0)
    other = ray_train_cluster.run(dag.get_task("train"), map_index=1, run_id=one.run_id)
    second, tune = (ray_train_cluster.run(dag.get_task(name), run_id=one.run_id) for name in ("second", "tune"))
    assert second.return_value["experiment"] == other.return_value["experiment"]
    assert tune.submissions[0].train_loop_config == {"parents": "[1, 1]"}
    each = ray_train_cluster.run(dag.get_task("each"), map_index=1, run_id=one.run_id)
    assert each.return_value["experiment"] == other.return_value["experiment"]
    with pytest.raises(InvalidConfig, match="map_index=0"):
        ray_train_cluster.run(dag.get_task("train"))
    with pytest.raises(InvalidConfig, match="train has 2 instances"):
        ray_train_cluster.run(dag.get_task("train"), map_index=2)


def test_faults_of_the_cluster_itself(ray_train_cluster: RayTrainCluster) -> None:
    fault = ray_train_cluster.jobs_api.add(Fault("drop", "POST", ".*/api/jobs/", times=1))
    run = ray_train_cluster.run(operator())
    assert (run.state, fault.num_hit, len(run.submissions)) == ("success", 1, 1)


def test_checks_of_a_result_are_made(ray_train_cluster: RayTrainCluster) -> None:
    run = ray_train_cluster.run(operator(require_new_checkpoint=True), outcomes=[CommitsNothing()])
    assert "committed no new checkpoint" in str(run.error)
    lost = [DriverLost({"epoch": 4}), Succeeds({"epoch": 0})]
    run = ray_train_cluster.run(operator(progress_metric="epoch"), outcomes=lost)
    assert isinstance(run.error, RayJobFailed)
    assert "the training loop must load ray.train.get_checkpoint()" in str(run.error)
    proven = ray_train_cluster.run(
        operator(progress_metric="epoch"), outcomes=[DriverLost({"epoch": 4}), Succeeds({"epoch": 5})]
    )
    assert proven.return_value["restore_proven"] == "yes"
    guessed = ray_train_cluster.run(operator(), outcomes=[DriverLost({"step": 4}), Succeeds({"step": 0})])
    assert guessed.return_value["restore_proven"] == "unknown", "a metric that nobody declared accuses nobody"
    stalled = ray_train_cluster.run(operator(stall_timeout_s=600.0, retries=1), outcomes=[NeverEnds({"epoch": 0})] * 2)
    assert [one.xcoms["ray_train_failure"]["kind"] for one in stalled.tries] == ["stalled", "stalled"]


def test_what_a_test_gets_wrong_is_said(ray_train_cluster: RayTrainCluster) -> None:
    with pytest.raises(UnusedOutcomes, match=r"1 of 2 outcomes were not used.*1 jobs were submitted"):
        ray_train_cluster.run(operator(), outcomes=[Succeeds(), Succeeds()])
    with pytest.raises(NotInTestMode, match=r"did not end in a year.*timeout_s"):
        ray_train_cluster.run(operator(), outcomes=[NeverEnds()])
    with pytest.raises(InvalidConfig, match="no time zone"):
        ray_train_cluster.run(operator(), logical_date=datetime(2026, 11, 29))  # noqa: DTZ001
    with pytest.raises(InvalidConfig, match="belongs to no DAG"):
        ray_train_cluster.run(RayTrainOperator(task_id="x", storage_path=STORAGE, train_loop="a:b"))


def test_a_dag_run_may_be_started_by_an_asset_or_have_a_date(ray_train_cluster: RayTrainCluster) -> None:
    asset = Asset("churn_model")

    @task
    def consume(triggering_asset_events: Any = None) -> str | None:
        return newest_model(triggering_asset_events[asset]).checkpoint

    with DAG("consumer", schedule=[asset]) as dag:
        consume()
    trained = ray_train_cluster.run(operator(outlets=[asset]), outcomes=[Succeeds({"accuracy": 0.9})])
    consumed = ray_train_cluster.run(dag.get_task("consume"), triggered_by=trained.asset_events)
    assert consumed.return_value == trained.return_value["best_checkpoint"]["uri"]
    dated = ray_train_cluster.run(
        operator(train_loop_config={"day": "{{ ds }}"}), logical_date=datetime(2026, 11, 29, tzinfo=timezone.utc)
    )
    assert dated.submissions[0].train_loop_config == {"day": "2026-11-29"}


def test_variables_and_what_the_test_mode_has_not(
    ray_train_cluster: RayTrainCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_train_cluster.airflow.variables["table"] = "t1"
    monkeypatch.setenv("AIRFLOW_VAR_LR", "0.1")
    config = {"table": "{{ var.value.table }}", "lr": "{{ var.value.lr }}", "none": "{{ var.value.get('x', 'y') }}"}
    run = ray_train_cluster.run(operator(train_loop_config=config))
    assert run.submissions[0].train_loop_config == {"table": "t1", "lr": 0.1, "none": "y"}

    @task
    def asks() -> None:
        from airflow.sdk import get_current_context

        get_current_context()["ti"].get_dagrun_state("d", "r")

    with DAG("asking", schedule=None) as dag:
        asks()
    with pytest.raises(NotInTestMode, match=r"GetDagRunState.*dag\.test\(\)"):
        ray_train_cluster.run(dag.get_task("asks"))


def test_a_sensor_that_starts_from_the_trigger_runs_too(ray_train_cluster: RayTrainCluster) -> None:
    trained = ray_train_cluster.run(operator(), outcomes=[Succeeds({"accuracy": 0.8})])
    waited = ray_train_cluster.run(sensor(start_from_trigger=True), run_id=trained.run_id)
    assert waited.return_value["latest_checkpoint"] == trained.return_value["latest_checkpoint"]
    late = ray_train_cluster.run(sensor(start_from_trigger=True, until="accuracy > 0.9"), run_id=trained.run_id)
    assert late.state == "failed"
    assert late.xcoms["ray_train_wait"]["end"] == "not_met"
