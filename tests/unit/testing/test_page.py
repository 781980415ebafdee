"""The page about the test mode: its files are a project of their own, whose tests pass where there is no Ray."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from airflow_provider.testing import outcomes

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "guides" / "testing.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
WITHOUT_RAY = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"ray", "torch", "pyarrow", "boto3"}:
            raise ModuleNotFoundError(f"no {name} in this environment", name=name)

sys.meta_path.insert(0, Missing())
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:randomly"]))
"""


def run_without_ray(folder: Path) -> subprocess.CompletedProcess[str]:
    """Pytest in a folder, with neither Ray nor the AWS SDK to import and no way to a database."""
    home = folder / "airflow-home"
    names = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTEST"))}
    database = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite:////no/such/folder/airflow.db"}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY],
        cwd=folder,
        env={
            **names,
            **database,
            "AIRFLOW_HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # ours must need none, and others load much
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=55,
    )


def test_its_project_passes_without_ray(tmp_path: Path) -> None:
    assert set(FILES) == {"conftest.py", "churn.py", "test_churn.py"}
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    done = run_without_ray(tmp_path)
    assert "4 passed" in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]


def test_the_plugin_itself_loads_nothing(tmp_path: Path) -> None:
    """Who lists it in a conftest pays for Airflow only where a test asks for the fixture."""
    (tmp_path / "conftest.py").write_text(FILES["conftest.py"])
    (tmp_path / "test_cost.py").write_text(
        "import sys\n\ndef test_cost():\n    assert not {'airflow', 'aiohttp', 'httpx', 'pydantic'} & set(sys.modules)\n"
    )
    done = run_without_ray(tmp_path)
    assert "1 passed" in done.stdout, done.stdout[-3000:]


def test_its_outcomes_are_all_there_are() -> None:
    known = {
        name for name, one in vars(outcomes).items() if isinstance(one, type) and issubclass(one, outcomes.Outcome)
    }
    assert set(re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE)) == known - {"Outcome"}
