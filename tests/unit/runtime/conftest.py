"""The runtime runs where Ray is. Where only Airflow's side is installed (other Pythons), there is nothing to run it on."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("ray") and find_spec("torch") else ["test_*.py"]


@pytest.fixture(autouse=True)
def _private_temp_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver makes a folder of its own; those of tests go with the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
