"""Processes that stop before each call to the outside, so that a test decides which of them goes on, and how far.

Each is a greenlet around the product's own blocking code. One that nobody resumes is frozen; one that is killed never
takes another effect. The order says what becomes of the call before which a process stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from greenlet import greenlet

T = TypeVar("T")

GO, FAIL, LOSE, DIE_AFTER = "go", "fail", "lose", "die after"
"""The call works; fails without effect; takes effect and its answer is lost; is the last that the process makes."""
_NAMES = {
    ("bucket", "create_if_absent", "owners/"): "own",
    ("bucket", "create_if_absent", "/claim.json"): "claim",
    ("bucket", "create_if_absent", "/stop-"): "stop record",
    ("bucket", "create_if_absent", "/collected.json"): "accept",
    ("bucket", "replace_if_match", "/collected.json"): "accept",
    ("bucket", "write", "owners/"): "acted on",
    ("bucket", "write", "/alive.json"): "alive",
    ("bucket", "write", "/restored.json"): "restored",
    ("bucket", "write", "checkpoint_manager_snapshot.json"): "manifest",
    ("bucket", "write", "/outcome.json"): "outcome",
    ("bucket", "write", "/quarantine/"): "quarantine",
    ("bucket", "read", "/alive.json"): "read alive",
    ("bucket", "read", "/claim.json"): "read claim",
    ("bucket", "read", "owners/"): "read owner",
    ("bucket", "read", "checkpoint_manager_snapshot.json"): "read manifest",
    ("bucket", "list_folder", "owners/"): "read owner",
    ("bucket", "list_folder", "/attempts/"): "list attempts",
    ("bucket", "delete", ""): "delete",
    ("cluster", "submit", ""): "POST",
    ("cluster", "get_job", ""): "look up",
    ("cluster", "stop", ""): "stop",
    ("airflow", "marker", ""): "marker",
    ("airflow", "push", ""): "publish",
    ("driver", "train", ""): "train",
    ("", "sleep", ""): "sleep",
    ("driver", "parked", ""): "parked",
}
POINTS = sorted(set(_NAMES.values()) - {"parked", "sleep"})


class Killed(BaseException):
    """The process is gone."""


@dataclass(frozen=True)
class Call:
    """A call to the outside."""

    room: str
    """bucket, cluster, airflow or driver."""
    verb: str
    key: str = ""

    @property
    def point(self) -> str:
        """What a person would call this moment; "" for the others."""
        for (room, verb, part), name in _NAMES.items():
            if (room, verb) == (self.room, self.verb) and part in self.key:
                return name
        return ""

    def __str__(self) -> str:
        return f"{self.point or self.verb} {self.key}".strip()


@dataclass(eq=False)
class Process:
    """One of Airflow's or the cluster's, or a thread of one."""

    scheduler: Scheduler
    name: str
    target: Callable[[], Any]
    is_gone: Callable[[], bool] = lambda: False
    """Whether the process that this is a thread of has ended."""
    about: Any = None
    """What it is a process of."""
    at: Call | None = None
    is_over: bool = False
    is_killed: bool = False
    had_fault: bool = False
    result: Any = None
    error: BaseException | None = None
    seen: dict[str, Any] = field(default_factory=dict)
    """What it saw outside, for the invariants only."""

    def __post_init__(self) -> None:
        self._greenlet = greenlet(self._run, parent=self.scheduler.hub)

    def _run(self) -> None:
        try:
            self.result = self.target()
        except BaseException as error:  # noqa: BLE001 - the end of a process, whatever it is
            self.error = error
        self.is_over, self.at = True, None

    def pause(self, call: Call) -> str:
        """Stand before a call until somebody resumes this process."""
        self.at = call
        order: str = self.scheduler.hub.switch()
        self._check_alive()
        return order

    def _check_alive(self) -> None:
        if self.is_killed or self.is_gone():
            raise Killed

    def resume(self, order: str = GO) -> None:
        """Make the call, and go on to the next one or to the end."""
        before, self.scheduler.current = self.scheduler.current, self
        try:
            self._greenlet.switch(order) if self._greenlet else self._greenlet.switch()
        finally:
            self.scheduler.current = before

    def run(self, until: str = "end", *, orders: int = 400) -> None:
        """Go on until the next call is the named one, or the process sleeps or ends; at least one call."""
        for _ in range(orders):
            if self.is_over:
                return
            self.resume()
            if self.at is not None and (self.at.point in (until, "parked") or self._is_asleep):
                return
        if not self.is_over:
            raise AssertionError(f"{self.name} makes no end: {self.at}")

    @property
    def _is_asleep(self) -> bool:
        return self.at is not None and self.at.point == "sleep"

    def interrupt(self, error: BaseException) -> None:
        """Raise where it stands, as a signal handler does."""
        before, self.scheduler.current = self.scheduler.current, self
        try:
            self._greenlet.throw(error)
        finally:
            self.scheduler.current = before

    def kill(self) -> None:
        """SIGKILL: nothing of it is done any more."""
        self.is_killed = True
        if self.is_over:
            return
        if self._greenlet:
            self.interrupt(Killed())
        self.is_over, self.at = True, None
        self.error = self.error or Killed()

    def answer(self, call: Call, effect: Callable[[], T], errors: tuple[Callable[[], Exception], ...]) -> T:
        """A call of this process, as its order says. `errors` are for one without effect and for a lost answer."""
        self._check_alive()
        order = self.pause(call)
        self.scheduler.journal.append(f"{self.name}: {call}{'' if order == GO else f' [{order.upper()}]'}")
        if order == FAIL:
            error = errors[0]()
            raise error
        result = effect()
        if order == LOSE:
            error = errors[1]()
            raise error
        if order == DIE_AFTER:
            self.is_killed = True
            raise Killed
        return result


class Scheduler:
    """Who runs now. Calls outside any process are the test's own, and take effect at once."""

    def __init__(self) -> None:
        self.hub = greenlet.getcurrent()
        self.current: Process | None = None
        self.journal: list[str] = []
        """All calls in their order, for a person who reads a broken story."""

    def call(self, call: Call, effect: Callable[[], T], *errors: Callable[[], Exception]) -> T:
        """Make a call to the outside."""
        return effect() if self.current is None else self.current.answer(call, effect, errors)
