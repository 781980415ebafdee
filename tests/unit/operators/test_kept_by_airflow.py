"""What Airflow keeps between our processes and gives back damaged: an error of ours that the next try can get over."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.core.errors import MessageUnreadable
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.waiting import WaitEnd, WaitEvent, WaitLimits
from airflow_provider.hooks.final_stop import stop_for_good
from airflow_provider.operators.marker import MARKER_KEY, dag_run_identity
from airflow_provider.triggers.ray_train import RayTrainTrigger

SECRET = "s3cr3t-t0ken"
EVENT = {"end": "ended", "reason": "over", "generation": 1, "attempt": 2, "k": 3, "submission_id": "s"}


def test_an_event_of_the_trigger_is_read() -> None:
    found = WaitEvent.parse(EVENT | {"more": 1})
    assert (found.end, str(found.ref), found.k) == (WaitEnd.ENDED, "g1/a2", 3)
    assert found.kind is FailureKind.INFRASTRUCTURE


@pytest.mark.parametrize("name", list(EVENT))
@pytest.mark.parametrize("value", [..., None, [SECRET], {SECRET: 1}, -1, 10**400, "\ud800" * 3_000])
def test_a_damaged_event_is_an_error_that_names_the_field(name: str, value: Any) -> None:
    event: dict[str, Any] = {key: item for key, item in (EVENT | {name: value}).items() if item is not ...}
    if name == "reason" and isinstance(value, str):
        assert "\ud800" not in WaitEvent.parse(event).reason
        return
    with pytest.raises(MessageUnreadable, match=name) as caught:
        WaitEvent.parse(event)
    assert SECRET not in str(caught.value)
    assert caught.value.kind.is_retryable


@pytest.mark.parametrize("event", [None, [], "x", 3])
def test_no_event_at_all(event: object) -> None:
    with pytest.raises(MessageUnreadable):
        WaitEvent.parse(event)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"deadline": "2026-11-29T12:00:00"}, "its type"),
        ({"deadline": "soon"}, "its type"),
        ({"limits": {"poll_interval_s": float("inf")}}, "poll_interval_s"),
        ({"limits": {"deadline_grace_s": 1e300}}, "deadline_grace_s"),
        ({"limits": [1]}, "its type"),
        ({"generation": 0}, "generation"),
    ],
)
async def test_a_damaged_row_ends_in_an_event_and_no_traceback(changes: dict[str, Any], named: str) -> None:
    row: dict[str, Any] = {
        "conn_id": "c", "aws_conn_id": None, "experiment_uri": "/shared/e", "generation": 1, "attempt": 1, "k": 1,
        "submission_id": "s", "session_name": None, "deadline": None, "limits": WaitLimits().model_dump(),
    }  # fmt: skip
    [event] = [event async for event in RayTrainTrigger(**(row | changes)).run()]
    assert event.payload["end"] == "error"
    assert event.payload["reason"].startswith("MessageUnreadable: The trigger's row can't be read")
    assert named in event.payload["reason"]


@pytest.mark.parametrize("job", [None, [], "x", {"experiment": 3}, {"experiment": "/e", "conn_id": "c"}])
def test_a_damaged_job_record_is_not_taken_for_no_job(job: object) -> None:
    with pytest.raises(MessageUnreadable, match="ray_train_job"):
        stop_for_good(
            job,
            task=TaskInstanceKey("d", "r", "t"),
            counters={"try_number": 1, "max_tries": 1, "clear_number": 0},
            how="marked failed",
        )


@pytest.mark.parametrize("marker", [[], "x", {}, {"identity": 3}])
def test_a_damaged_marker_is_not_taken_for_a_new_dag_run(marker: object) -> None:
    """Another identity means a clear, which may train from the start again."""

    class Store:
        def get(self, key: str) -> object:
            assert key == MARKER_KEY
            return marker

    with pytest.raises(MessageUnreadable, match=MARKER_KEY):
        dag_run_identity(Store())  # type: ignore[arg-type]
