"""What a job brings along: exactly our runtime and the author's code, the same bytes each time, and no secret."""

from __future__ import annotations

import ast
import io
import json
import sys
import zipfile
from pathlib import Path

import pytest

import airflow_provider
from airflow_provider.client.values import Package
from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.job import TrainingKind, TrainVersion
from airflow_provider.core.job_spec import JobSpec, TrainingSpec
from airflow_provider.hooks.job_package import (
    code_digest,
    code_package,
    runtime_env,
    runtime_files,
    runtime_package,
)
from tests.support.experiment import ref

ROOT = Path(airflow_provider.__file__).parent


def spec(*, attempt: int = 1, k: int = 1, train_version: TrainVersion = TrainVersion.V2) -> JobSpec:
    training = TrainingSpec(kind=TrainingKind.TRAIN_LOOP, target="m:f", train_version=train_version)
    return JobSpec(
        experiment_uri="s3://models/x", ref=ref(1, attempt), k=k, submission_id=f"job-{attempt}", training=training
    )


def unzipped(package: Package) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(package.content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_runtime_imports_only_what_ray_brings_to_a_cluster() -> None:
    """`cloudpickle` came with scikit-learn here: where a cluster had only Ray, its absence passed for missing seams."""
    ray_brings = {"ray", "pyarrow", "pydantic", "typing_extensions"}
    for path, body in runtime_files().items():
        for node in ast.walk(ast.parse(body)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            for name in names:
                top = name.partition(".")[0]
                assert top in sys.stdlib_module_names | ray_brings | {"airflow_provider"}, f"{path} imports {name}"


def test_the_runtime_travels_with_core_and_the_spec_and_nothing_else() -> None:
    """The driver runs where neither Airflow nor this provider is installed."""
    ours = [ROOT / "__init__.py", *(ROOT / "core").glob("*.py"), *(ROOT / "runtime").glob("*.py")]
    expected = {f"airflow_provider/{path.relative_to(ROOT)}": path.read_bytes() for path in ours}
    files = unzipped(runtime_package(spec()))
    body = files.pop("airflow_provider/job_spec.json")
    assert files == expected
    assert JobSpec.model_validate_json(body) == spec()


def test_the_same_spec_is_the_same_package() -> None:
    """Ray names packages by content: a repeated POST must find the one that is there."""
    one, same, other = runtime_package(spec()), runtime_package(spec()), runtime_package(spec(attempt=2))
    assert (one.uri, one.content) == (same.uri, same.content)
    assert one.uri != other.uri


def test_the_code_digest_ignores_the_spec_and_sees_the_code(tmp_path: Path) -> None:
    """A repost of a claim is allowed only for the same code; the attempt number is not part of it."""
    (tmp_path / "train.py").write_text("x = 1")
    first = code_package(str(tmp_path), dag_folder=Path("/"))
    (tmp_path / "train.py").write_text("x = 2")
    second = code_package(str(tmp_path), dag_folder=Path("/"))
    assert len({code_digest(None), code_digest(first), code_digest(second)}) == 3


def test_the_code_digest_sees_our_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_digest(None)
    changed = {**runtime_files(), "airflow_provider/runtime/driver.py": b"changed"}
    monkeypatch.setattr("airflow_provider.hooks.job_package.runtime_files", lambda: changed)
    assert code_digest(None) != before


def test_the_authors_code_is_found_beside_the_dag_file(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "loop.py").write_text("pass")
    (tmp_path / "training" / ".env").write_text("SECRET=1")
    package = code_package("training", dag_folder=tmp_path)
    assert package is not None
    assert set(unzipped(package)) == {"loop.py"}
    assert code_package(None, dag_folder=tmp_path) is None


def test_a_missing_working_directory_is_found_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=str(tmp_path / "gone")):
        code_package("gone", dag_folder=tmp_path)


def test_the_authors_environment_is_kept_and_ours_is_added() -> None:
    user = {"pip": ["scikit-learn"], "env_vars": {"LR": "1", "PYTHONUNBUFFERED": "0"}}
    package = runtime_package(spec(attempt=2, k=3))
    env = runtime_env(user, spec=spec(attempt=2, k=3), runtime=package, code=Package("gcs://code.zip", b""))
    assert env == {
        "pip": ["scikit-learn"],
        "env_vars": {
            "LR": "1",
            "PYTHONUNBUFFERED": "1",
            "RAY_TRAIN_AIRFLOW_ATTEMPT": "g1/a2-k3",
            "RAY_TRAIN_V2_ENABLED": "1",
            "RAY_JOB_STOP_WAIT_TIME_S": "15",
        },
        "py_modules": [package.uri],
        "working_dir": "gcs://code.zip",
    }
    assert user == {"pip": ["scikit-learn"], "env_vars": {"LR": "1", "PYTHONUNBUFFERED": "0"}}, (
        "the author's is as it was"
    )


def test_each_attempt_has_an_environment_of_its_own() -> None:
    """Ray remembers a failed environment for 10 minutes and fails the next job with it."""
    package = runtime_package(spec())
    envs = [
        json.dumps(runtime_env(None, spec=s, runtime=package, code=None)) for s in (spec(), spec(attempt=2), spec(k=2))
    ]
    assert len(set(envs)) == 3


def test_train_v1_is_asked_for_in_the_environment() -> None:
    old = spec(train_version=TrainVersion.V1)
    env = runtime_env(None, spec=old, runtime=runtime_package(old), code=None)
    assert env["env_vars"]["RAY_TRAIN_V2_ENABLED"] == "0"
    assert "working_dir" not in env


def test_nothing_of_ours_in_job_or_package_is_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray shows packages and environments to anyone who reaches the dashboard."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret-key")
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", '{"conn_type": "ray", "host": "h", "password": "s3cret-token"}')
    package = runtime_package(spec())
    shown = json.dumps(runtime_env(None, spec=spec(), runtime=package, code=None)).encode()
    assert not any(b"s3cret" in body for body in [shown, *unzipped(package).values()])
