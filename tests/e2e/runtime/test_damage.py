"""Checkpoints are damaged in the bucket between two attempts: set aside with the reason, and the run goes on from an intact one."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.core import layout
from airflow_provider.core.restore_policy import RestorePolicy
from tests.support.job_package import Experiment
from tests.support.runtime_case import EPOCHS, assert_equal_weights, drivers, kill, loop, weights

# Longer than one test's usual minute: each job costs Ray's start-up, and a shared machine may be busy.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
FILE = "state.pt"


def recorded(experiment: Experiment, n: int) -> dict[str, Any]:
    """Entries of an attempt's records by name: their file lists tell later that an object was cut."""
    keys = experiment.keys(layout.segments(1, n))
    return {entry["checkpoint"]: entry for key in keys for entry in experiment.json(key)["checkpoints"]}


def object_of(experiment: Experiment, checkpoint: str) -> dict[str, str]:
    """Where the only file of a checkpoint lies."""
    return {"Bucket": experiment.bucket, "Key": f"{experiment.prefix}/g000001/{checkpoint}/{FILE}"}


def quarantined(experiment: Experiment) -> dict[str, str]:
    """Reasons by the checkpoint that was set aside."""
    records = [experiment.json(key) for key in experiment.keys("g000001/quarantine/")]
    assert all(r["released_by"] is None and not r["is_suspicion"] for r in records)
    return {r["checkpoint"]: r["reason"] for r in records}


@pytest.mark.slow
def test_missing_cut_and_empty_checkpoints_are_set_aside_and_the_newest_intact_one_is_restored(
    experiment: Experiment, healthy: Experiment
) -> None:
    """G3: the run ends with the weights of an unharmed one; with on_corrupt="fail" it is refused first, and nothing touched."""
    first = experiment.start(loop(epoch_s=3), 1)
    experiment.until(lambda: len(recorded(experiment, 1)) >= 4, job=first, what="4 recorded commits")
    kill(drivers(experiment.ray))
    assert experiment.wait(first)["status"] == "FAILED"
    committed = experiment.committed(1)
    files = [recorded(experiment, 1)[name]["files"] for name in committed[:4]]
    assert all(file["size"] > 0 for [file] in files)
    intact, empty, cut, missing = committed[:4]
    # A fifth was perhaps committed before the kill: what is missing is the newest, and all after it.
    gone = [missing, *committed[4:]]
    for name in gone:
        experiment.client.delete_object(**object_of(experiment, name))
    body = experiment.read(f"g000001/{cut}/{FILE}")
    assert body is not None
    experiment.client.put_object(**object_of(experiment, cut), Body=body[:-100])
    experiment.client.put_object(**object_of(experiment, empty), Body=b"")

    refused = experiment.start(loop(), 2, restore=RestorePolicy(on_corrupt="fail"))
    assert experiment.wait(refused)["driver_exit_code"] == 1
    failure = experiment.json(layout.outcome(1, 2))["failure"]
    assert failure["kind"] == "checkpoint"
    assert f"{gone[-1]} can't be restored" in failure["reason"]
    assert "on_corrupt='fail'" in failure["reason"]
    assert quarantined(experiment) == {}, "a person may still repair the objects"

    second = experiment.start(loop(), 3)
    assert experiment.wait(second)["status"] == "SUCCEEDED", experiment.log(second)
    reasons = quarantined(experiment)
    assert {name: reasons.pop(name) for name in gone} == dict.fromkeys(gone, "no file is left of it")
    assert reasons == {
        cut: f"{FILE} has {len(body) - 100} bytes instead of {len(body)}",
        empty: "all 1 files are empty",
    }
    restored = experiment.json(layout.restored(1, 3))
    assert restored["checkpoint"] == intact
    assert [s["checkpoint"] for s in restored["skipped"]] == [*reversed(gone), cut, empty]
    assert f"went back over {len(gone) + 2} unusable" in restored["reason"]
    log = experiment.log(second)
    for name in (*gone, cut, empty):
        assert f"checkpoint {name} is in quarantine" in log
    outcome = experiment.json(layout.outcome(1, 3))
    assert (outcome["state"], outcome["restore_proven"], outcome["num_commits"]) == ("success", "yes", EPOCHS - 1)
    assert experiment.committed(3)[0] == intact
    assert not set(experiment.committed(3)) & {*gone, cut, empty}
    assert_equal_weights(weights(experiment, 3), weights(healthy, 1))
