"""Joins a cluster on loopback. `ray start` refuses a second node there, for it takes a machine that has only loopback for a laptop."""

from __future__ import annotations

import argparse
import json
import signal

from ray._private.node import Node
from ray._private.parameter import RayParams


def main() -> None:
    """Start a node and stay until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parameters", type=json.loads, help="of Ray's RayParams, as JSON")
    parameters = RayParams(min_worker_port=0, max_worker_port=0, **parser.parse_args().parameters)
    Node(parameters, head=False, shutdown_at_exit=True, spawn_reaper=True, connect_only=False)
    signal.pause()


if __name__ == "__main__":
    main()
