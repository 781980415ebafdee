"""Ten fixed runs of chaos on the shared stack: each kind of target once, at the point where it hurts most."""

from __future__ import annotations

import pytest

from tests.chaos.run import ChaosRun
from tests.chaos.table import FIXED, Pair
from tests.stack.airflow_client import AirflowClient
from tests.stack.services import Stack
from tests.support.training_run import TrainingRun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("pair", FIXED, ids=lambda pair: pair.name)
def test_no_fault_loses_doubles_or_orphans_anything(
    stack: Stack, airflow: AirflowClient, unharmed: TrainingRun, pair: Pair
) -> None:
    report = ChaosRun(stack, airflow, pair).execute(unharmed.weights())
    assert report.verdict.is_clean, (report.verdict.sentences(), report.fault)
    if pair.is_airflows_loss:
        assert report.attempts == 1, "a training was started again although only Airflow lost something"
