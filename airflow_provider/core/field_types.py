"""Types of fields that records and events share: what is stored can be compared, shown and written again.

Texts that are only shown are cut; what is compared (ids, digests) or named (checkpoints) is refused instead.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from airflow_provider.core.strict_json import shortened, storable

MAX_SHOWN = 3_000
"""Characters of a sentence."""
MAX_ID = 2_000
MAX_NAME = 4_096
"""Longest path of a file system; a key in S3 has 1,024 bytes."""


_FIELD_NAME = re.compile(r"^[A-Za-z_:.-]{1,40}$")


def shown_part(part: int | str) -> str:
    """A key as a message may name it: one that looks like no field's name may be a secret in the wrong place."""
    return str(part) if isinstance(part, int) or _FIELD_NAME.match(part) else "(a key that is not repeated here)"


def _utc(value: datetime) -> datetime:
    if value.tzinfo is None or value.utcoffset() is None:
        # All our writers give the offset; comparing with a time that has none raises far from here.
        raise ValueError("a time without an offset from UTC")
    if not 1970 <= value.year <= 9000:
        # Arithmetic with it would overflow.
        raise ValueError("a year outside 1970 to 9000")
    return value.astimezone(timezone.utc)


def _shown(value: Any) -> Any:
    return shortened(storable(value), limit=MAX_SHOWN) if isinstance(value, str) else value


def checked_name(value: str) -> str:
    """A checkpoint's name as it may be put behind a folder. Raises ValueError."""
    if not value or len(value) > MAX_NAME:
        raise ValueError(f"a checkpoint name of {len(value)} characters")
    # Where a text was not storable, U+FFFD stands instead: no folder has that name.
    if value != storable(value) or "\ufffd" in value:
        raise ValueError("a checkpoint name with characters that no text has")
    if ".." in value.split("/"):
        raise ValueError("a checkpoint name that leaves its folder")
    return value


UtcTime = Annotated[datetime, AfterValidator(_utc)]
"""An aware time, in UTC. One without an offset is damage: it is refused, never guessed."""
Shown = Annotated[str, BeforeValidator(_shown)]
"""A sentence for people: storable, and without its middle where it is too long."""
Id = Annotated[str, Field(max_length=MAX_ID)]
"""A text that is compared: never cut."""
CheckpointName = Annotated[str, AfterValidator(checked_name)]
"""A checkpoint's folder, relative to the generation's."""
Number = Annotated[int, Field(gt=-(2**63), lt=2**63)]
"""An integer that databases and Airflow's messages hold."""
