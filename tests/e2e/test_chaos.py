"""Ten fixed runs of chaos on the shared stack: each kind of target once, at the point where it hurts most."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.run import ChaosRun, unharmed_weights
from tests.chaos.table import FIXED, Pair
from tests.stack.airflow_client import AirflowClient
from tests.stack.services import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def weights(stack: Stack, airflow: AirflowClient) -> dict[str, Any]:
    """The weights of the same training without a fault."""
    return unharmed_weights(stack, airflow)


@pytest.mark.parametrize("pair", FIXED, ids=lambda pair: pair.name)
def test_no_fault_loses_doubles_or_orphans_anything(
    stack: Stack, airflow: AirflowClient, weights: dict[str, Any], pair: Pair
) -> None:
    report = ChaosRun(stack, airflow, pair).execute(weights)
    assert report.verdict.is_clean, (report.verdict.sentences(), report.fault)
    if pair.is_airflows_loss:
        assert report.attempts == 1, "a training was started again although only Airflow lost something"
