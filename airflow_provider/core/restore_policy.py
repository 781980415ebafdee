"""Which checkpoint a try restores, as the author asks for it and as the job and the records keep it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from airflow_provider.core.field_types import Id


class RestorePolicy(BaseModel):
    """Which checkpoint a restore starts from."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    mode: Literal["latest", "best", "explicit"] = "latest"
    """The newest checkpoint that verifies, the best one by `metric`, or the one that `checkpoint` names."""
    metric: Id | None = None
    """Metric for `best`."""
    order: Literal["max", "min"] = "max"
    """Whether more or less of the metric is better."""
    checkpoint: Id | None = None
    """Name relative to the generation folder (`attempts/000001/checkpoint_...`) for `explicit`."""
    on_corrupt: Literal["rollback", "fail"] = "rollback"
    """The operator's parameter of that name."""


def known_fields(value: object) -> object:
    """A stored policy may have a newer release's fields, which readers ignore; a DAG's may not, it could be a typo."""
    if not isinstance(value, dict):
        return value
    return {name: part for name, part in value.items() if name in RestorePolicy.model_fields}
