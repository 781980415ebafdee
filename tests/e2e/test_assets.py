"""Asset events on a real Airflow: the training's extra, the gate's verdicts, and the consumer that an event starts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stack.airflow_client import AirflowClient
from tests.stack.process import wait_until
from tests.stack.services import Stack
from tests.support.training_run import TrainingRun

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]
LIMIT_S = 240.0


def events_of(run: TrainingRun) -> dict[str, list[dict[str, Any]]]:
    """The asset events that a DAG run emitted, by the asset's name."""
    found: dict[str, list[dict[str, Any]]] = {}
    answer = run.airflow.request("GET", "/assets/events", params={"source_run_id": run.run_id})
    for event in answer["asset_events"]:
        found.setdefault(event["name"], []).append(event)
    return found


def trained(stack: Stack, airflow: AirflowClient, *, epochs: int) -> TrainingRun:
    """A whole run of the example's training."""
    run = TrainingRun(stack, airflow, "train_digits", airflow.run_dag("train_digits", conf={"epochs": epochs}))
    task = airflow.wait_for_task(*run.key, timeout_s=LIMIT_S)
    assert task["state"] == "success", run.log()[-4000:]
    return run


def kept_for(airflow: AirflowClient, asset_id: int) -> dict[str, Any]:
    """The asset's state as a person sees it in the UI."""
    entries = airflow.request("GET", f"/assets/{asset_id}/state-store")["asset_state_store"]
    return {entry["key"]: entry for entry in entries}


def test_a_better_model_starts_the_evaluation_and_a_worse_one_does_not(stack: Stack, airflow: AirflowClient) -> None:
    airflow.wait_for_dag("evaluate_digits")
    airflow.unpause("evaluate_digits")
    good = trained(stack, airflow, epochs=3)
    best = good.xcom()["best_checkpoint"]
    events = events_of(good)
    assert {name: len(found) for name, found in events.items()} == {"digits": 1, "digits_promoted": 1}
    for (event,) in events.values():
        extra = event["extra"]
        assert (extra["checkpoint"], extra["selected"], extra["metrics"]) == (best["uri"], "best", best["metrics"])
        assert (extra["epoch"], extra["attempt"]) == (best["metrics"]["epoch"], 1)
        assert (extra["experiment"], extra["run_id"]) == (good.xcom()["experiment"], good.run_id)
        assert (event["source_dag_id"], event["source_task_id"]) == ("train_digits", "train")
    (promoted,) = events["digits_promoted"]
    (kept,) = kept_for(airflow, promoted["asset_id"]).values()
    assert (kept["value"]["value"], kept["value"]["checkpoint"]) == (best["metrics"]["accuracy"], best["uri"])
    assert kept["last_updated_by"]["run_id"] == good.run_id

    def consumer_runs() -> list[dict[str, Any]]:
        return list(airflow.request("GET", "/dags/evaluate_digits/dagRuns")["dag_runs"])

    wait_until(lambda: len(consumer_runs()) == 1, timeout_s=60, what="the evaluation's run")
    (evaluation,) = consumer_runs()
    assert evaluation["run_type"] == "asset_triggered"
    assert airflow.wait_for_dag_run("evaluate_digits", evaluation["dag_run_id"]) == "success"
    seen = airflow.xcom("evaluate_digits", evaluation["dag_run_id"], "evaluate")
    assert (seen["checkpoint"], seen["accuracy"]) == (best["uri"], best["metrics"]["accuracy"])
    assert seen["files"]["state.pt"] > 0

    worse = trained(stack, airflow, epochs=1)
    assert list(events_of(worse)) == ["digits"], "a plain outlet always fires, the gate did not"
    verdict = worse.xcom()["published"]["digits_promoted"]
    accuracy = worse.xcom()["best_checkpoint"]["metrics"]["accuracy"]
    assert (verdict["published"], verdict["value"], verdict["last"]) == (False, accuracy, kept["value"]["value"])
    assert f"not better than {verdict['last']:g} of run {good.run_id}: not published" in worse.log()
    assert kept_for(airflow, promoted["asset_id"])[kept["key"]]["value"] == kept["value"]
    assert len(consumer_runs()) == 1
