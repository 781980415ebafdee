"""The parts that a job's spec and the experiment's records share."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass

from airflow_provider.core.field_types import MAX_NAME, Id, Number, Shown

SCHEMA_VERSION = 1


class AttemptRef(BaseModel):
    """Which attempt: claims rank by (generation, attempt)."""

    model_config = ConfigDict(frozen=True)
    generation: int = Field(ge=1, le=999_999)
    attempt: int = Field(ge=1, le=999_999)

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: newer attempts are greater."""
        return (self.generation, self.attempt)

    def __str__(self) -> str:
        """Short form for messages: `g1/a2`."""
        return f"g{self.generation}/a{self.attempt}"


@lru_cache(maxsize=4_096)
def _kept_once(name: str) -> str:
    """The first of equal texts. Not `sys.intern`: Python 3.12 frees none of those, and some trainings name each file anew."""
    return name


# An experiment may have 10,000 checkpoints of many files each: with slots each takes a tenth of a model's memory.
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFile:
    """One object of a checkpoint. `key` is relative to the checkpoint's folder, `size` in bytes."""

    key: Annotated[str, Field(max_length=MAX_NAME), AfterValidator(_kept_once)]
    """The checkpoints of a training have files of the same names: each name is kept once."""
    size: Annotated[Number, Field(ge=0)]
    etag: Id = ""


class ParentCheckpoint(BaseModel):
    """The checkpoint of another experiment that a generation begins from, as it was found before the first claim."""

    model_config = ConfigDict(frozen=True)
    uri: Id
    files: tuple[CheckpointFile, ...] = ()
    """The first ones by name, at most 1,000; `num_files` and `size_bytes` count all."""
    num_files: Annotated[Number, Field(ge=0)] = 0
    size_bytes: Annotated[Number, Field(ge=0)] = 0
    metrics: dict[str, Any] = {}


class WarmStartRecord(BaseModel):
    """Where a generation begins: decided once, before its first claim, and carried by every claim after it."""

    model_config = ConfigDict(frozen=True)
    parent: ParentCheckpoint | None
    """None: from the start, because no parent was there and `missing="fresh"` allowed it."""
    reason: Shown
