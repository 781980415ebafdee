"""Network and authentication: gateways that fail for minutes, and tokens that are refused or must not show."""

from __future__ import annotations

import json

import pytest

from airflow_provider.core.errors import ClusterAuthFailed
from tests.support.case_files import expected
from tests.support.decisions import is_retried
from tests.support.operator_run import World
from tests.support.tape import Tape
from tests.support.whole_try import try_by


@pytest.mark.scenario("C85")
def test_a_refused_token_ends_the_try_at_once_and_is_shown_nowhere(world: World) -> None:
    """401 from the first call on: nothing is posted, and asking again would not help."""
    Tape.load("C85").arm(world.server, "GET", ".*")
    with pytest.raises(ClusterAuthFailed) as caught:
        world.operator().execute(world.task.context)
    right = expected("C85")
    assert caught.value.failure.kind.value.upper() == right["class"]
    assert is_retried(caught.value) is right["retry"]
    assert 0 < len(world.server.requests) <= right["max_calls"]
    assert world.server.num_posts == 0
    assert world.task.ti.xcoms["ray_train_failure"]["kind"] == "auth"
    shown = json.dumps(world.task.ti.xcoms) + str(caught.value) + repr(caught.value.__reduce__())
    assert right["secret_leak"] is ("t0ken" in shown)
    stored = world.bench.store._objects.values()
    assert not [entry for entry in stored if b"t0ken" in entry.body]


@pytest.mark.scenario("C87")
def test_twenty_pages_of_502_are_silence_and_the_training_succeeds(world: World) -> None:
    """The gateway was away for minutes and its HTML is no answer; nothing is submitted again."""
    trigger = try_by(world, Tape.load("C87"))
    event = world.follow(trigger, unreachable_timeout_s=1800.0, lost_after_s=0.0)
    gateway = [fault for fault in world.server.faults if fault.status == 502]
    assert [fault.num_hit for fault in gateway] == [20]
    world.bench.commit("checkpoint_0")
    assert world.complete(event)["state"] == expected("C87")["final"]
    assert world.server.num_posts == expected("C87")["posts"]
