"""The runtime runs where Ray is. Where only Airflow's side is installed (other Pythons), there is nothing to run it on."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("ray") and find_spec("torch") else ["test_*.py"]
