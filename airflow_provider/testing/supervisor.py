"""What a task's process asks Airflow for, answered from memory: XComs, variables, connections, assets, task state.

Airflow's own task runner sends these messages to its supervisor, which asks the API server. Here a test's values answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time import comms

from airflow_provider.core.errors import InvalidConfig

TaskKey = tuple[str, str, str]
"""DAG, run and task."""
RETURN_KEY = "return_value"


class NotInTestMode(InvalidConfig):
    """The task asked Airflow for something that the test mode does not have."""


@dataclass
class Supervisor:
    """Airflow's memory of one test."""

    now: Callable[[], datetime]
    xcoms: dict[tuple[TaskKey, int], dict[str, Any]] = field(default_factory=dict)
    """Values by key, of each task instance."""
    variables: dict[str, Any] = field(default_factory=dict)
    connections: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[comms.AssetEventResult] = field(default_factory=list)
    asset_state: dict[tuple[str, str], Any] = field(default_factory=dict)
    task_state: dict[tuple[TaskKey, int], dict[str, Any]] = field(default_factory=dict)
    instances: dict[Any, tuple[TaskKey, int]] = field(default_factory=dict)
    """Task instances by the id that Airflow gave their try."""
    counts: dict[TaskKey, int] = field(default_factory=dict)
    """How many instances a mapped task has."""
    first_looks: dict[Any, datetime] = field(default_factory=dict)
    """When a sensor in reschedule mode looked first, by the try's id."""
    rendered: dict[str, Any] = field(default_factory=dict)
    """Template fields of the last task as rendered."""
    triggered: list[comms.TriggerDagRun] = field(default_factory=list)

    def send(self, msg: Any) -> Any:
        """As the supervisor answers."""
        answer = getattr(self, f"_{type(msg).__name__}", None)
        if answer is None:
            raise NotInTestMode(
                f"The task asked Airflow for {type(msg).__name__}, which the test mode does not have",
                change="test this task with Airflow's own dag.test(), or leave it out of the test",
            )
        return answer(msg)

    async def asend(self, msg: Any) -> Any:
        """The same for code on an event loop."""
        return self.send(msg)

    def add_event(self, name: str, uri: str, extra: Any) -> None:
        """An event of an asset."""
        self.events.append(
            comms.AssetEventResult(
                id=len(self.events) + 1,
                timestamp=self.now(),
                extra=json.loads(json.dumps(extra)),
                asset=comms.AssetResult(name=name, uri=uri, group="asset"),
                created_dagruns=[],
            )
        )

    def put_result(self, task: TaskKey, value: Any, *, is_mapped: bool) -> None:
        """The result of a task that the test does not run; a mapped one has a list, one for each index."""
        values = list(value) if is_mapped else [value]
        self.counts[task] = len(values)
        for index, one in enumerate(values):
            self.xcoms[task, index if is_mapped else -1] = {RETURN_KEY: json.loads(json.dumps(one))}

    # --- XComs -------------------------------------------------------------------------------------------------------

    def _values(self, msg: Any) -> list[Any]:
        """What the instances of a task pushed under a key, by map index."""
        runs = [msg.run_id]
        if getattr(msg, "include_prior_dates", False):
            # The newest of the runs before counts where this one has nothing: they were pushed in this order.
            runs += dict.fromkeys(run for (dag, run, _), _ in reversed(self.xcoms) if dag == msg.dag_id)
        for run in runs:
            task = (msg.dag_id, run, msg.task_id)
            found = [
                (i, values[msg.key]) for (key, i), values in self.xcoms.items() if key == task and msg.key in values
            ]
            if found:
                return [value for _, value in sorted(found, key=lambda pair: pair[0])]
        return []

    def _GetXCom(self, msg: comms.GetXCom) -> Any:
        index = -1 if msg.map_index is None else msg.map_index
        of_run = self.xcoms.get(((msg.dag_id, msg.run_id, msg.task_id), index), {})
        if msg.key not in of_run and msg.include_prior_dates:
            before = (
                v
                for (task, i), v in reversed(self.xcoms.items())
                if (task[0], task[2], i) == (msg.dag_id, msg.task_id, index)
            )
            of_run = next((values for values in before if msg.key in values), {})
        return comms.XComResult(key=msg.key, value=of_run.get(msg.key))

    def _GetXComCount(self, msg: comms.GetXComCount) -> Any:
        return comms.XComCountResponse(len=len(self._values(msg)))

    def _GetXComSequenceItem(self, msg: comms.GetXComSequenceItem) -> Any:
        values = self._values(msg)
        if not -len(values) <= msg.offset < len(values):
            return comms.ErrorResponse(error=ErrorType.XCOM_NOT_FOUND, detail={"offset": msg.offset})
        return comms.XComSequenceIndexResult(root=values[msg.offset])

    def _GetXComSequenceSlice(self, msg: comms.GetXComSequenceSlice) -> Any:
        return comms.XComSequenceSliceResult(root=self._values(msg)[msg.start : msg.stop : msg.step])

    def _SetXCom(self, msg: comms.SetXCom) -> None:
        task = (msg.dag_id, msg.run_id, msg.task_id)
        index = -1 if msg.map_index is None else msg.map_index
        # Through JSON: what can't travel to Airflow must not pass a test.
        self.xcoms.setdefault((task, index), {})[msg.key] = json.loads(json.dumps(msg.value))

    def _DeleteXCom(self, msg: comms.DeleteXCom) -> None:
        task = (msg.dag_id, msg.run_id, msg.task_id)
        self.xcoms.get((task, -1 if msg.map_index is None else msg.map_index), {}).pop(msg.key, None)

    # --- the task's state store --------------------------------------------------------------------------------------

    def _GetTaskStateStore(self, msg: comms.GetTaskStateStore) -> Any:
        kept = self.task_state.get(self.instances[msg.ti_id], {})
        if msg.key not in kept:
            return comms.ErrorResponse(error=ErrorType.TASK_STORE_NOT_FOUND, detail={"key": msg.key})
        return comms.TaskStateStoreResult(value=kept[msg.key])

    def _SetTaskStateStore(self, msg: comms.SetTaskStateStore) -> Any:
        kept = self.task_state.setdefault(self.instances[msg.ti_id], {})
        kept[msg.key] = json.loads(json.dumps(msg.value))
        return comms.OKResponse(ok=True)

    def _DeleteTaskStateStore(self, msg: comms.DeleteTaskStateStore) -> Any:
        self.task_state.get(self.instances[msg.ti_id], {}).pop(msg.key, None)
        return comms.OKResponse(ok=True)

    # --- assets ------------------------------------------------------------------------------------------------------

    def _events_of(self, msg: Any, *, name: str | None, uri: str | None) -> Any:
        found = [e for e in self.events if e.asset.name == name or (uri is not None and e.asset.uri == uri)]
        found = found if msg.ascending else found[::-1]
        return comms.AssetEventsResult(asset_events=list(found[: msg.limit]))

    def _GetAssetEventByAsset(self, msg: comms.GetAssetEventByAsset) -> Any:
        return self._events_of(msg, name=msg.name, uri=msg.uri)

    def _GetAssetByName(self, msg: comms.GetAssetByName) -> Any:
        return comms.AssetResult(name=msg.name, uri=msg.name, group="asset")

    def _GetAssetByUri(self, msg: comms.GetAssetByUri) -> Any:
        return comms.AssetResult(name=msg.uri, uri=msg.uri, group="asset")

    def _GetAssetsByAlias(self, _: comms.GetAssetsByAlias) -> Any:
        return comms.AssetsByAliasResult(assets=[])

    def _GetAssetStateStoreByName(self, msg: comms.GetAssetStateStoreByName) -> Any:
        if (msg.name, msg.key) not in self.asset_state:
            return comms.ErrorResponse(error=ErrorType.ASSET_STORE_NOT_FOUND, detail={"key": msg.key})
        return comms.AssetStateStoreResult(value=self.asset_state[msg.name, msg.key])

    def _SetAssetStateStoreByName(self, msg: comms.SetAssetStateStoreByName) -> Any:
        self.asset_state[msg.name, msg.key] = json.loads(json.dumps(msg.value))
        return comms.OKResponse(ok=True)

    def _ValidateInletsAndOutlets(self, _: comms.ValidateInletsAndOutlets) -> Any:
        return comms.InactiveAssetsResult(inactive_assets=[])

    # --- all else ----------------------------------------------------------------------------------------------------

    def _GetVariable(self, msg: comms.GetVariable) -> Any:
        if msg.key not in self.variables:
            return comms.ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND, detail={"key": msg.key})
        value = self.variables[msg.key]
        return comms.VariableResult(key=msg.key, value=value if isinstance(value, str) else json.dumps(value))

    def _GetConnection(self, msg: comms.GetConnection) -> Any:
        if msg.conn_id not in self.connections:
            return comms.ErrorResponse(error=ErrorType.CONNECTION_NOT_FOUND, detail={"conn_id": msg.conn_id})
        return comms.ConnectionResult(conn_id=msg.conn_id, **self.connections[msg.conn_id])

    def _GetTaskStates(self, msg: comms.GetTaskStates) -> Any:
        """The one task that runs, which is the one that asks."""
        (task_id,) = msg.task_ids or ("",)
        index = -1 if msg.map_index is None else msg.map_index
        name = task_id if index < 0 else f"{task_id}_{index}"
        return comms.TaskStatesResult(task_states={run_id: {name: "running"} for run_id in msg.run_ids or ()})

    def _GetTICount(self, msg: comms.GetTICount) -> Any:
        runs, tasks = msg.run_ids or (), msg.task_ids or ()
        return comms.TICount(count=sum(self.counts.get((msg.dag_id, run, task), 1) for run in runs for task in tasks))

    def _GetTaskRescheduleStartDate(self, msg: comms.GetTaskRescheduleStartDate) -> Any:
        return comms.TaskRescheduleStartDate(start_date=self.first_looks.get(msg.ti_id))

    def _SetRenderedFields(self, msg: comms.SetRenderedFields) -> None:
        self.rendered = dict(msg.rendered_fields)

    def _TriggerDagRun(self, msg: comms.TriggerDagRun) -> Any:
        self.triggered.append(msg)
        return comms.OKResponse(ok=True)

    def _ignored(self, _: Any) -> None:
        """What only tells Airflow something; how a task ended, the runner's own answer says."""

    _MaskSecret = _SetRenderedMapIndex = _ignored
    _SucceedTask = _DeferTask = _RetryTask = _RescheduleTask = _TaskState = _ignored
    _SkipDownstreamTasks = _ignored
