"""Two runs that end together, in every order of their steps: when the better model ends as the last published one."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from airflow.sdk import Asset, Context
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider.assets.model import GatedAsset
from airflow_provider.core.publishing import PublishedModel
from airflow_provider.operators.asset_events import emit
from tests.support.fake_assets import FakeAssets

GOOD = Asset("good")
KEY = ("good", "ray_train_last_published:accuracy")
STEPS = 4
"""Of a run on its own: events, entry, own entry, second look."""
ORDERS = [
    "".join("b" if i in chosen else "w" for i in range(2 * STEPS))
    for chosen in itertools.combinations(range(2 * STEPS), STEPS)
]


@dataclass
class Turns:
    """Lets threads named by one letter take their steps in a given order; who has more steps takes them at the end."""

    order: str
    assets: FakeAssets
    taken: list[tuple[str, str]] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def send(self, message: Any) -> Any:
        name = threading.current_thread().name
        with self.changed:
            assert self.changed.wait_for(lambda: self.is_turn_of(name), timeout=10)
            self.order = self.order[1:]
            self.taken.append((name, type(message).__name__))
            answer = self.assets.send(message)
            self.changed.notify_all()
            return answer

    def is_turn_of(self, name: str) -> bool:
        while self.order and self.order[0] in self.ended:
            self.order = self.order[1:]
        return not self.order or self.order[0] == name

    def end(self, name: str) -> None:
        with self.changed:
            self.ended.add(name)
            self.changed.notify_all()


class Log:
    def info(self, *_: object) -> None:
        """Nobody listens."""


def run_side_by_side(order: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Turns, dict[str, bool]]:
    turns = Turns(order, FakeAssets(state={KEY: {"value": 0.5, "checkpoint": "s3://old"}}))
    monkeypatch.setattr("airflow.sdk.execution_time.task_runner.SUPERVISOR_COMMS", turns, raising=False)
    published: dict[str, bool] = {}

    def end_training(name: str, accuracy: float) -> None:
        model = PublishedModel(checkpoint=f"s3://{name}", metrics={"accuracy": accuracy}, run_id=name)
        gated = GatedAsset(GOOD, metric="accuracy", mode="max", better_than_last=True)
        context = cast("Context", {"outlet_events": OutletEventAccessors()})
        try:
            verdicts = emit([gated], model, context=context, log=Log())
            published[name] = verdicts["good"]["published"]
        finally:
            turns.end(name)

    threads = [
        threading.Thread(target=end_training, name=name, args=(name, accuracy))
        for name, accuracy in (("b", 0.9), ("w", 0.8))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return turns, published


def falls_between(taken: list[tuple[str, str]]) -> bool:
    """Whether the better run wrote and looked while the worse had read and not yet written."""
    places = {step: [i for i, taken_step in enumerate(taken) if taken_step == step] for step in set(taken)}
    writes = places.get(("w", "SetAssetStateStoreByName"), [])
    if not writes:
        return False
    read = max(i for i in places["w", "GetAssetStateStoreByName"] if i < writes[-1])
    wrote = places["b", "SetAssetStateStoreByName"][-1]
    looked = places["b", "GetAssetStateStoreByName"][-1]
    return read < wrote < looked < writes[-1]


def test_the_better_of_two_runs_ends_as_the_last_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 70 orders. The one gap is the documented one: Airflow's store has no conditional write."""
    gaps = 0
    for order in ORDERS:
        turns, published = run_side_by_side(order, monkeypatch)
        assert published["b"], (order, turns.taken)
        is_gap = falls_between(turns.taken)
        gaps += is_gap
        assert (turns.assets.state[KEY]["value"] == 0.9) is not is_gap, (order, turns.taken)
        if turns.assets.state[KEY]["value"] == 0.9 and published["w"]:
            # The worse one's last look came before the better one's last entry: it was the best known at that moment.
            looked = max(i for i, step in enumerate(turns.taken) if step[0] == "w")
            wrote = max(i for i, step in enumerate(turns.taken) if step == ("b", "SetAssetStateStoreByName"))
            assert looked < wrote, (order, turns.taken)
    assert 0 < gaps < len(ORDERS) / 5
