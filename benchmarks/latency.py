"""How long Ray's dashboard takes to answer `GET /api/jobs/ID`, played back by the stand-in.

`python -m benchmarks.latency` records it on a real cluster (it starts one) and writes `benchmarks/latency.json`, which says of what.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.stack.ray_cluster import RayCluster

FILE = Path(__file__).with_name("latency.json")
NUM_RECORDED = 600


def quantiles(values: Sequence[float], parts: int = 100) -> list[float]:
    """The values at 0, 1, ... `parts` hundredths of their order: what the file keeps."""
    ordered = sorted(values)
    return [ordered[round(i * (len(ordered) - 1) / parts)] for i in range(parts + 1)]


def drawn(distribution: Sequence[float], chance: float) -> float:
    """The latency at `chance` (0 to 1) of the recorded order, between two quantiles on the line through them."""
    place = chance * (len(distribution) - 1)
    below = min(int(place), len(distribution) - 2)
    return distribution[below] + (place - below) * (distribution[below + 1] - distribution[below])


def recorded() -> list[float]:
    """The recorded quantiles, in seconds."""
    found: list[float] = json.loads(FILE.read_text(encoding="utf-8"))["quantiles_s"]
    return found


def origin() -> str:
    """Where the recorded values come from."""
    found: str = json.loads(FILE.read_text(encoding="utf-8"))["of"]
    return found


def main() -> None:
    """Record against a real cluster whose head also runs a job, at the rate of 1,000 jobs and a 30 s poll."""
    from tests.stack.ray_cluster import RayCluster

    with tempfile.TemporaryDirectory() as folder, RayCluster(Path(folder), num_cpus=2) as cluster:
        job = json.loads(_asked(cluster, "POST", "/api/jobs/", {"entrypoint": "sleep 600"}))["submission_id"]
        taken = []
        for _ in range(NUM_RECORDED):
            began = time.perf_counter()
            _asked(cluster, "GET", f"/api/jobs/{job}")
            taken.append(time.perf_counter() - began)
            time.sleep(random.expovariate(33))  # 1,000 jobs at a 30 s poll
        _asked(cluster, "POST", f"/api/jobs/{job}/stop")
    found = [round(value, 5) for value in quantiles(taken)]
    kept = {"of": "GET /api/jobs/ID, Ray 2.60.0, loopback", "num": len(taken), "quantiles_s": found}
    FILE.write_text(json.dumps(kept) + "\n", encoding="utf-8")


def _asked(cluster: RayCluster, method: str, path: str, body: object = None) -> str:
    request = urllib.request.Request(f"{cluster.address}{path}", method=method)  # noqa: S310 - loopback
    request.add_header("Authorization", f"Bearer {cluster.token}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - loopback
        text: str = answer.read().decode()
    return text


if __name__ == "__main__":
    main()
