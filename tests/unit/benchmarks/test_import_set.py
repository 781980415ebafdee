"""What parsing a DAG file loads: the part of benchmark 1 that doesn't depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.import_sides import Side
from benchmarks.peers import ASTRO, GOOGLE, OURS, PLAIN, Installed
from tests.unit.test_provider_info import HEAVY

PARSE = """
import json, sys
from pathlib import Path
from airflow.sdk import DAG, BaseOperator
from airflow.dag_processing.processor import DagFileParseRequest, _parse_file
import structlog

steps = []
for name in ("floor", "first", "second"):
    before = set(sys.modules)
    path = Path(sys.argv[1]) / f"{name}.py"
    request = DagFileParseRequest(file=str(path), bundle_path=path.parent, bundle_name="b", callback_requests=[])
    found = _parse_file(request, structlog.get_logger())
    assert not found.import_errors and len(found.serialized_dags) == 1, found.import_errors
    steps.append(sorted(name for name in set(sys.modules) - before if not name.startswith("unusual_prefix")))
print("\\n" + json.dumps(steps))
"""


def test_parsing_dag_files_loads_nothing_heavy_and_a_second_file_nothing_at_all(tmp_path: Path) -> None:
    """As the DAG processor parses them: import, validation, serialization."""
    ours = Installed(OURS, Path(sys.executable))
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "training_code.py").write_text("def train_loop(config):\n    pass\n")
    (tmp_path / "floor.py").write_text(Side(ours, is_floor=True).dag_file("floor"))
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(Side(ours).dag_file(name))
    command = [sys.executable, "-W", "ignore", "-c", PARSE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    _, first, second = json.loads(done.stdout.splitlines()[-1])
    assert "airflow_provider.operators.ray_train" in first
    assert [name for name in first if name.partition(".")[0] in HEAVY] == []
    assert second == []


ALLOWED = """
core core.errors core.failure core.field_types core.identity core.job core.json_input core.redaction core.restore_policy
core.spec core.strict_json core.warm_start links links.ray_train operators operators.parameters operators.ray_train policies
policies.retry provider_info
"""
"""What a DAG file loads of ours for the operator: names, models and checks; no rules of a try, which run in the task only.

Airflow itself loads `provider_info`, where it looks for its providers.
"""


def test_importing_the_operator_loads_what_a_dag_file_needs_and_no_more() -> None:
    program = "import sys, airflow_provider.operators.ray_train; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.splitlines()[-1].split() if name.startswith("airflow_provider.")}
    assert loaded <= {f"airflow_provider.{name}" for name in ALLOWED.split()}


def test_dag_files_of_peers_are_python_that_uses_their_operator() -> None:
    """They can't be imported here; each must at least be a DAG file with the operator that is measured."""
    for peer in (OURS, ASTRO, GOOGLE, PLAIN):
        text = Side(Installed(peer, Path(sys.executable))).dag_file("train")
        compile(text, peer.name, "exec")
        assert f"from {peer.module} import {peer.operator}" in text
        assert 'with DAG("train"' in text
        assert (f"{peer.operator}(" in text) == (peer is not PLAIN)
