"""What Ray holds and has: releases the reservation of a dead attempt, and says what the cluster lacks for a living one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from airflow_provider.core.watch import capacity_warning
from airflow_provider.runtime.speech import say

_ACTOR = "AutoscalingCoordinator"
_TIMEOUT_S = 5.0


def shortage(wanted: Mapping[str, float], *, num_workers: int) -> str | None:
    """What the whole cluster lacks for the workers. None: nothing, so others hold it now."""
    import ray

    return capacity_warning(wanted, ray.cluster_resources(), num_workers=num_workers)


def release_reservation(train_run_id: str) -> None:
    """Cancel a dead fit's request for nodes, so that the next one needn't wait for it to expire. Best effort.

    An elastic run holds its nodes for three minutes after its death.
    """
    if not train_run_id:
        return
    import ray

    with contextlib.suppress(ValueError):  # no such actor: nobody reserved anything on this cluster
        coordinator = ray.get_actor(_ACTOR, namespace=_ACTOR)
        try:
            ray.get(coordinator.cancel_request.remote(f"train-{train_run_id}"), timeout=_TIMEOUT_S)
        except Exception as error:  # process edge: Ray's internals; the reservation expires by itself
            say(f"warning: the reservation of train run {train_run_id[:8]} was not released: {error}")
