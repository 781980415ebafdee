"""What Airflow's API server keeps of assets, behind the messages that a task's process really sends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.sdk.execution_time import comms
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.execution_time.task_runner import _serialize_outlet_events

from airflow_provider.testing.supervisor import Supervisor
from tests.support.fake_airflow import refused

START = datetime(2026, 11, 29, tzinfo=timezone.utc)


class FakeAssets:
    """Events and state of assets by name: the test mode's, with what it has not."""

    def __init__(self, *, state: dict[tuple[str, str], Any] | None = None) -> None:
        self.events: list[comms.AssetEventResult] = []
        self.state = {} if state is None else state
        self.is_active = True
        """Whether a DAG refers to the assets; if not, Airflow keeps no state for them."""
        self.asked: list[str] = []
        self.after_set: Callable[[], None] = lambda: None
        self._supervisor = Supervisor(
            now=lambda: START + timedelta(seconds=len(self.events)), events=self.events, asset_state=self.state
        )

    def send(self, message: Any) -> Any:
        """As the supervisor answers."""
        if isinstance(message, comms.MaskSecret):  # of the connection
            return None
        self.asked.append(type(message).__name__)
        if not self.is_active and isinstance(message, comms.GetAssetStateStoreByName):
            return comms.ErrorResponse(error=comms.ErrorType.ASSET_STORE_NOT_FOUND, detail={"key": message.key})
        if not self.is_active and isinstance(message, comms.SetAssetStateStoreByName):
            raise refused(404)
        answer = self._supervisor.send(message)
        if isinstance(message, comms.SetAssetStateStoreByName):
            self.after_set()
        return answer

    def succeed(self, events: OutletEventAccessors) -> list[dict[str, Any]]:
        """The task ends with success: what it set becomes events. Returns them as (asset, extra)."""
        made = []
        for one in _serialize_outlet_events(events):
            key = one["dest_asset_key"]
            name = key["name"] if isinstance(key, dict) else key.name  # type: ignore[union-attr]
            self.emit(name, one["extra"])
            made.append({"asset": name, "extra": one["extra"]})
        return made

    def emit(self, name: str, extra: Any) -> None:
        """An event from anywhere."""
        self._supervisor.add_event(name, name, extra)


def fake_assets(monkeypatch: pytest.MonkeyPatch) -> FakeAssets:
    """Put one in the place of the supervisor."""
    assets = FakeAssets()
    monkeypatch.setattr("airflow.sdk.execution_time.task_runner.SUPERVISOR_COMMS", assets, raising=False)
    return assets
