"""The machine runs the runtime's own code, which needs pyarrow: it comes with Ray. Other Pythons may have only Airflow's side."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("ray") and find_spec("pyarrow") else ["test_*.py"]
