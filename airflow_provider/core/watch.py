"""What a person should be told about a running attempt before it costs them anything. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

FIRST_WARNING_S = 600.0
"""Seconds of training without any commit before the first warning; each further one after twice as long."""
WAITING_WARNING_S = 60.0
"""Seconds of waiting for nodes before the wanted resources are compared with the cluster's."""


def no_checkpoint_warning(*, trained_s: float, num_commits: int, restored: str | None, num_told: int) -> str | None:
    """A training that commits nothing can't be resumed: said early, then ever more seldom. None: nothing to say now.

    `trained_s` are seconds of training in this fit, `num_told` how often it was said before.
    """
    if num_commits or trained_s < FIRST_WARNING_S * 2**num_told:
        return None
    start = f"go back to {restored}" if restored else "start from the beginning"
    return (
        f"no checkpoint in {trained_s:.0f} s of training: a failure now would {start}; report checkpoints with"
        " ray.train.report(metrics, checkpoint=...)"
    )


def capacity_warning(wanted: Mapping[str, float], total: Mapping[str, float], *, num_workers: int) -> str | None:
    """Resources that `num_workers` workers want and the whole cluster, idle or busy, does not have. None: it fits.

    `wanted` is one worker's, `total` the cluster's. An autoscaler may still add nodes, so this is no error.
    """
    missing = [
        f"{need:g} {name} (it has {total.get(name, 0):g})"
        for name, per_worker in sorted(wanted.items())
        if (need := per_worker * num_workers) > total.get(name, 0) and not math.isclose(need, total.get(name, 0))
    ]
    if not missing:
        return None
    return f"the cluster as it is can't hold {num_workers} workers: they want {', '.join(missing)}; waiting for nodes"
