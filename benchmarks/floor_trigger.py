"""The floor: a trigger that sleeps and GETs the job, and nothing else. No log, no sign of life, no care for what goes wrong."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from airflow.triggers.base import BaseTrigger, TriggerEvent

_SESSIONS: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}


class FloorTrigger(BaseTrigger):
    """Asks one job's status until it has ended."""

    def __init__(self, *, url: str, submission_id: str, poll_interval_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.url, self.submission_id, self.poll_interval_s = url, submission_id, poll_interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The row."""
        names = ("url", "submission_id", "poll_interval_s")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ask and sleep."""
        loop = asyncio.get_running_loop()
        if loop not in _SESSIONS:
            _SESSIONS[loop] = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20))
        session = _SESSIONS[loop]
        while True:
            try:
                async with session.get(f"{self.url}/api/jobs/{self.submission_id}") as answer:
                    if (await answer.json())["status"] in {"SUCCEEDED", "FAILED", "STOPPED"}:
                        break
            except asyncio.TimeoutError:
                pass
            await asyncio.sleep(self.poll_interval_s * (0.8 + 0.4 * random.random()))  # noqa: S311 - spreads load
        yield TriggerEvent({"id": self.submission_id})  # type: ignore[no-untyped-call]


class FloorLogTrigger(FloorTrigger):
    """Reads the log's websocket once, line by line into the task log, and doesn't care how it ended."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One connection."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}/api/jobs/{self.submission_id}") as answer,
            session.ws_connect(f"{self.url}/api/jobs/{self.submission_id}/logs/tail") as socket,
        ):
            await answer.read()
            async for message in socket:
                for line in message.data.splitlines():
                    self.log.info(line)
        yield TriggerEvent({"id": self.submission_id})  # type: ignore[no-untyped-call]
