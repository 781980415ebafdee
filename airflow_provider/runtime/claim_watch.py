"""Polls whether this driver may go on, and ends the process when it may not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

from airflow_provider.core.errors import RayTrainError
from airflow_provider.runtime.speech import say
from airflow_provider.runtime.standing import Hit, HitKind

Look = Callable[[datetime], "Hit | None"]


class ClaimWatch:
    """A daemon thread over `look`. A store error is never a hit: training goes on while the store is away."""

    def __init__(
        self,
        look: Look,
        *,
        obey: Callable[[Hit], None],
        now: Callable[[], datetime],
        deadline: datetime | None,
        period_s: float,
    ) -> None:
        """`deadline` is also watched by itself, since `look` may hang on a store that is away."""
        self._look, self._obey, self._now = look, obey, now
        self._deadline, self._period_s = deadline, period_s
        self._stop = threading.Event()
        self._is_away = False

    def start(self) -> None:
        """Start polling."""
        threading.Thread(target=self._run, name="claim-watch", daemon=True).start()
        if self._deadline is not None:
            threading.Thread(target=self.await_deadline, args=(self._deadline,), name="deadline", daemon=True).start()

    def stop(self) -> None:
        """Stop polling; a look that is under way may still obey."""
        self._stop.set()

    def poll(self) -> None:
        """One look."""
        try:
            hit = self._look(self._now())
        except RayTrainError as error:
            if not self._is_away:
                say(f"warning: the claim can't be checked, training goes on: {error}")
            self._is_away = True
            return
        if self._is_away:
            say("the claim can be checked again")
            self._is_away = False
        if hit is not None and not self._stop.is_set():
            self._obey(hit)

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            try:
                self.poll()
            except Exception as error:  # process edge: without this thread nothing would end a superseded driver
                say(f"warning: the claim watch failed ({type(error).__name__}: {error}) and goes on")

    def await_deadline(self, deadline: datetime) -> None:
        """Obey the deadline by the clock alone."""
        while not self._stop.is_set():
            left = (deadline - self._now()).total_seconds()
            if left <= 0:
                self._obey(Hit(HitKind.DEADLINE, f"the deadline {deadline:%Y-%m-%d %H:%M:%S} UTC passed"))
                return
            self._stop.wait(min(left + 0.1, 60.0))
