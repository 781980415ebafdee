"""Files of reported failures: what lay in the bucket, and what its report's author thinks is right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CASES = Path(__file__).resolve().parents[1] / "fixtures" / "cases"


def expected(case: str) -> dict[str, Any]:
    """The right outcome in the case's own words."""
    loaded: dict[str, Any] = json.loads((CASES / case / "expect.json").read_text("utf-8"))
    return loaded


def objects(case: str, prefix: str = "") -> dict[str, bytes]:
    """Bodies of a recorded listing by key, below a prefix and relative to it."""
    listed = json.loads((CASES / case / "listing.json").read_text("utf-8"))["objects"]
    found = {key: body for item in listed for key, body in _bodies(CASES / case, item)}
    return {key.removeprefix(prefix): body for key, body in found.items() if key.startswith(prefix)}


def _bodies(folder: Path, item: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    key = item["key"]
    if "range" in item:
        first, last = item["range"]
        for number in range(first, last + 1):
            yield key.format(i=number), bytes(item["size"])
    elif "file" in item:
        yield key, (folder / item["file"]).read_bytes()
    else:
        yield key, item["text"].encode() if "text" in item else bytes(item["size"])
