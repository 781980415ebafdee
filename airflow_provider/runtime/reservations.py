"""Releases what an attempt that died still holds: an elastic run reserves nodes for three minutes after its death."""

from __future__ import annotations

import contextlib

from airflow_provider.runtime.speech import say

_ACTOR = "AutoscalingCoordinator"
_TIMEOUT_S = 5.0


def release_reservation(train_run_id: str) -> None:
    """Cancel a dead fit's request for nodes, so that the next one needn't wait for it to expire. Best effort."""
    if not train_run_id:
        return
    import ray

    with contextlib.suppress(ValueError):  # no such actor: nobody reserved anything on this cluster
        coordinator = ray.get_actor(_ACTOR, namespace=_ACTOR)
        try:
            ray.get(coordinator.cancel_request.remote(f"train-{train_run_id}"), timeout=_TIMEOUT_S)
        except Exception as error:  # process edge: Ray's internals; the reservation expires by itself
            say(f"warning: the reservation of train run {train_run_id[:8]} was not released: {error}")
