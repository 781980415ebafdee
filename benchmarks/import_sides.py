"""What benchmark 1 measures: environments, the DAG files that use each operator, and the code that loads them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Sample, run_python
from benchmarks.options import ROOT, SCRATCH
from benchmarks.peers import OURS, Installed

HOME = SCRATCH / "import"
FLOOR = "from airflow.sdk import DAG, BaseOperator"
"""What a DAG file needs whatever operator it uses."""

_IMPORT = """
import sys, time
began, cpu = time.perf_counter(), time.process_time()
from airflow.sdk import DAG, BaseOperator
floor_s, floor_cpu_s, floor_mib, before = time.perf_counter() - began, time.process_time() - cpu, peak_mib(), set(sys.modules)
began, cpu = time.perf_counter(), time.process_time()
exec(statement)
s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
answer(
    s=s, cpu_s=cpu_s, mib=peak_mib() - floor_mib, modules=len(set(sys.modules) - before), floor_s=floor_s,
    floor_cpu_s=floor_cpu_s, floor_mib=floor_mib, floor_modules=len(before),
)
"""

_PARSE = """
import os, time
from pathlib import Path
import structlog
from airflow.sdk import DAG, BaseOperator
from airflow.dag_processing.processor import DagFileParseRequest, _parse_file, _pre_import_airflow_modules

log = structlog.get_logger("benchmark")
os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "client"  # as the DAG processor sets it for its children

def parse(path):
    request = DagFileParseRequest(file=str(path), bundle_path=path.parent, bundle_name="benchmark", callback_requests=[])
    result = _parse_file(request, log)
    if result.import_errors or len(result.serialized_dags) != 1:
        raise SystemExit(f"{path.name}: {len(result.serialized_dags)} DAGs, {result.import_errors}")

files = sorted(Path(folder).glob("dag_*.py"))[:num_files]
"""

_TOGETHER = """
before, began = peak_mib(), time.perf_counter()
for path in files:
    parse(path)
answer(s=(time.perf_counter() - began) / len(files), mib=peak_mib() - before)
"""

_FORKED = """
took, grew = [], []
for path in files:
    _pre_import_airflow_modules(str(path), log)  # modules named airflow.*, before the fork: as the DAG processor does
    began = time.perf_counter()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            before = rss_mib()
            parse(path)
            os.write(write, str(rss_mib() - before).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    said = os.read(read, 100)
    os.close(read)
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"{path.name} was not parsed")
    took.append(time.perf_counter() - began)
    grew.append(float(said))
answer(s=sum(took) / len(took), mib=sum(grew) / len(grew))
"""

_TASKS = {
    "ours": """RayTrainOperator(
        task_id="train",
        storage_path="s3://models/churn",
        train_loop="training_code:train_loop",
        train_loop_config={"epochs": 3},
        working_dir="training",
        scaling_config=ScalingConfig(num_workers=8),
    )""",
    "astro": """SubmitRayJob(
        task_id="train",
        conn_id="ray_default",
        entrypoint="python training_code.py",
        runtime_env={"working_dir": "training"},
        num_cpus=1,
    )""",
    "google": """RaySubmitJobOperator(
        task_id="train",
        cluster_address="http://127.0.0.1:8265",
        entrypoint="python training_code.py",
        runtime_env={"working_dir": "training"},
    )""",
}
"""A task of one's own that calls Ray's client costs what its file imports, so there the task is a bare one."""


@dataclass(frozen=True)
class Side:
    """A peer in its environment, or the floor of that environment: the same with a bare operator of airflow.sdk."""

    installed: Installed
    is_floor: bool = False

    @property
    def name(self) -> str:
        """Unique among the sides."""
        return f"floor of {self.installed.peer.name}" if self.is_floor else self.installed.peer.name

    @property
    def statement(self) -> str:
        """The operator's import."""
        peer = self.installed.peer
        return FLOOR if self.is_floor else f"from {peer.module} import {peer.operator}"

    def import_it(self) -> Sample:
        """What the import adds to airflow.sdk's, in a fresh interpreter."""
        return self._run(f"statement = {self.statement!r}\n{_IMPORT}")

    def parse_together(self, num_files: int) -> Sample:
        """Parse that many files in one process."""
        return self._parse(num_files, _TOGETHER)

    def parse_forked(self, num_files: int) -> Sample:
        """Parse that many files, each in a fork of a process that has loaded what the DAG processor has."""
        return self._parse(num_files, _FORKED)

    def write_files(self, num: int) -> None:
        """That many DAG files, each with one DAG of one task, beside the training code."""
        shutil.rmtree(self._folder, ignore_errors=True)
        training = self._folder / "training" / "training_code.py"
        training.parent.mkdir(parents=True)
        training.write_text("def train_loop(config):\n    pass\n", encoding="utf-8")
        for number in range(num):
            name = f"dag_{number:03d}"
            (self._folder / f"{name}.py").write_text(self.dag_file(name), encoding="utf-8")

    def dag_file(self, dag_id: str) -> str:
        """A DAG file as a person would write it for this operator."""
        imports = [FLOOR] if self.is_floor else [FLOOR, self.statement]
        if self.name == OURS.name:
            imports.append("from airflow_provider.core.spec import ScalingConfig")
        task = _TASKS.get(self.name, 'BaseOperator(task_id="train")')
        return "\n".join([*imports, f'with DAG("{dag_id}", schedule=None):', f"    {task}", ""])

    @property
    def _folder(self) -> Path:
        return HOME / "dags" / self.name.replace(" ", "_")

    def _parse(self, num_files: int, way: str) -> Sample:
        return self._run(f"folder, num_files = {str(self._folder)!r}, {num_files}\n{_PARSE}{way}")

    def _run(self, code: str) -> Sample:
        # Our checkout is on the path of our own environment only, wherever that has the package from.
        path = str(ROOT) if self.installed.peer is OURS else ""
        env = {"AIRFLOW_HOME": str(HOME / "airflow"), "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
        return run_python(self.installed.python, code, env=env, cwd=HOME)
