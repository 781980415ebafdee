"""Time that skips instead of passing: a wait of hours takes a test some milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

if TYPE_CHECKING:
    import pytest

_OURS = (
    "hooks.stop",
    "operators.ownership",
    "operators.session",
    "operators.warm_start",
    "sensors.wait",
    "triggers.ray_train_sensor",
    "triggers.waiter",
)
"""Modules of the provider that read the wall clock."""
_TRUE_PAUSES = 20
_GROWTH = 0.05
_AIRFLOWS_SENSOR = "airflow.sdk.bases.sensor"
"""Airflow's own loop behind a sensor that blocks a worker."""


class SkippingClock:
    """The machine's clock, set forward by what would have been slept. `on_skip` is called after each pause."""

    def __init__(self) -> None:
        self.skipped_s = 0.0
        self._wait_began_s, self._num_pauses = 0.0, 0
        self.on_skip: Callable[[], None] = lambda: None

    def now(self) -> datetime:
        """The time, UTC."""
        return datetime.now(timezone.utc) + timedelta(seconds=self.skipped_s)

    def monotonic(self) -> float:
        """Seconds that never jump back."""
        return time.monotonic() + self.skipped_s

    def begin_wait(self) -> None:
        """From here on pauses are counted."""
        self._wait_began_s, self._num_pauses = self.skipped_s, 0

    @property
    def waited_s(self) -> float:
        """How long the present wait has lasted."""
        return self.skipped_s - self._wait_began_s

    def skip(self, seconds: float) -> None:
        """Let a pause pass. After many of them they grow with the wait: hours of polls are no use to a test."""
        self._num_pauses += 1
        longer = self.waited_s * _GROWTH if self._num_pauses > _TRUE_PAUSES else 0.0
        self.skipped_s += max(0.0, seconds, longer)
        self.on_skip()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Give the provider's waits, and Airflow's sensors, this clock until the test ends."""
        clock = self

        class SkippedDatetime(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Self:
                return clock.now().astimezone(tz)  # type: ignore[return-value]  # a plain one, as pydantic wants it

        shown = SimpleNamespace(monotonic=self.monotonic, sleep=self.skip, time=lambda: self.now().timestamp())
        for name in _OURS:
            monkeypatch.setattr(f"airflow_provider.{name}.datetime", SkippedDatetime)
        monkeypatch.setattr("airflow_provider.triggers.waiter.time", shown)
        monkeypatch.setattr(f"{_AIRFLOWS_SENSOR}.time", shown)
        monkeypatch.setattr(f"{_AIRFLOWS_SENSOR}.timezone", SimpleNamespace(utcnow=self.now))
        self._install_pauses(monkeypatch)

    def _install_pauses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from airflow_provider.core.waiting import pause_s
        from airflow_provider.triggers.ray_train_sensor import RayTrainSensorTrigger

        sensor_pause_s = RayTrainSensorTrigger._pause_s  # noqa: SLF001 - ours: the pause itself is what is skipped

        def of_training(*given: Any) -> float:
            self.skip(pause_s(*given))
            return 0.0

        def of_sensor(*given: Any) -> float:
            self.skip(sensor_pause_s(*given))
            return 0.0

        monkeypatch.setattr("airflow_provider.triggers.waiter.pause_s", of_training)
        monkeypatch.setattr(RayTrainSensorTrigger, "_pause_s", of_sensor)
