"""What Airflow's API server keeps of assets, behind the messages that a task's process really sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.sdk.execution_time import comms
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.execution_time.task_runner import _serialize_outlet_events

from tests.support.fake_airflow import refused

START = datetime(2026, 11, 29, tzinfo=timezone.utc)


@dataclass
class FakeAssets:
    """Events and state of assets by name."""

    events: list[comms.AssetEventResult] = field(default_factory=list)
    state: dict[tuple[str, str], Any] = field(default_factory=dict)
    is_active: bool = True
    """Whether a DAG refers to the assets; if not, Airflow keeps no state for them."""
    asked: list[str] = field(default_factory=list)
    after_set: Callable[[], None] = lambda: None

    def send(self, message: Any) -> Any:
        """As the supervisor answers."""
        if isinstance(message, comms.MaskSecret):  # of the connection
            return None
        self.asked.append(type(message).__name__)
        match message:
            case comms.GetAssetEventByAsset():
                found = [e for e in self.events if e.asset.name == message.name]
                found = found if message.ascending else found[::-1]
                return comms.AssetEventsResult(asset_events=list(found[: message.limit]))
            case comms.GetAssetByName():
                return comms.AssetResult(name=message.name, uri=message.name, group="asset")
            case comms.GetAssetStateStoreByName():
                if self.is_active and (message.name, message.key) in self.state:
                    return comms.AssetStateStoreResult(value=self.state[message.name, message.key])
                return comms.ErrorResponse(error=comms.ErrorType.ASSET_STORE_NOT_FOUND, detail={"key": message.key})
            case comms.SetAssetStateStoreByName():
                if not self.is_active:
                    raise refused(404)
                self.state[message.name, message.key] = message.value
                self.after_set()
                return comms.OKResponse(ok=True)
        raise AssertionError(f"unexpected {message!r}")

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
        self.events.append(
            comms.AssetEventResult(
                id=len(self.events) + 1,
                timestamp=START + timedelta(seconds=len(self.events)),
                extra=extra,
                asset={"name": name, "uri": name, "group": "asset", "extra": {}},
                created_dagruns=[],
            )
        )


def fake_assets(monkeypatch: pytest.MonkeyPatch) -> FakeAssets:
    """Put one in the place of the supervisor."""
    assets = FakeAssets()
    monkeypatch.setattr("airflow.sdk.execution_time.task_runner.SUPERVISOR_COMMS", assets, raising=False)
    return assets
