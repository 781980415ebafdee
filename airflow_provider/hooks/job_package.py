"""What a job brings along: our runtime with its spec in one package, the author's code in another."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.job import ATTEMPT_ENV, JOB_SPEC_FILE, TrainVersion
from airflow_provider.core.job_spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.client.values import Package

PACKAGE = "airflow_provider"
TRAVELLING_ROOMS = ("core", "runtime")
"""Rooms that the driver needs; the others stay with Airflow."""


@cache
def runtime_files() -> dict[str, bytes]:
    """Our own sources that travel, by path inside the package's zip."""
    root = resources.files(PACKAGE)
    files = {f"{PACKAGE}/__init__.py": root.joinpath("__init__.py").read_bytes()}
    for room in TRAVELLING_ROOMS:
        for file in root.joinpath(room).iterdir():
            if file.name.endswith(".py"):
                files[f"{PACKAGE}/{room}/{file.name}"] = file.read_bytes()
    return files


def runtime_package(spec: JobSpec, *, more: Mapping[str, bytes] = MappingProxyType({})) -> Package:
    """The runtime and the job's spec as one py_modules package, named by content; `more` are a decorated function's files."""
    from airflow_provider.client.packages import package_files

    return package_files({**runtime_files(), **more, f"{PACKAGE}/{JOB_SPEC_FILE}": spec.body()})


def code_package(working_dir: str | None, *, dag_folder: Path) -> Package | None:
    """The author's working_dir as a package; relative paths start at the DAG file's folder.

    Raises InvalidConfig when it does not exist or is too large, before anything is sent.
    """
    from airflow_provider.client.packages import is_directory, package_directory

    if working_dir is None:
        return None
    path = Path(working_dir)
    path = path if path.is_absolute() else dag_folder / path
    if not is_directory(path):
        raise InvalidConfig(
            f"working_dir {working_dir!r} is not a directory",
            known=f"looked for {path}",
            change="give a path relative to the DAG file, or an absolute one that exists on the worker",
        )
    return package_directory(path)


def code_digest(code: Package | None, *, more: Mapping[str, bytes] = MappingProxyType({})) -> str:
    """Digest of everything that runs on the cluster except the spec: our runtime and the author's code."""
    digest = hashlib.sha256()
    for name, body in sorted({**runtime_files(), **more}.items()):
        digest.update(name.encode() + b"\0" + body + b"\0")
    digest.update((code.uri if code else "").encode())
    return digest.hexdigest()[:32]


def runtime_env(
    user: Mapping[str, Any] | None, *, spec: JobSpec, runtime: Package, code: Package | None
) -> dict[str, Any]:
    """The job's runtime environment. Holds no secret of ours: Ray shows it in clear to anyone with dashboard access."""
    env: dict[str, Any] = dict(user or {})
    is_v2 = spec.training.train_version is TrainVersion.V2
    env["env_vars"] = {
        **(env.get("env_vars") or {}),
        ATTEMPT_ENV: f"{spec.ref}-k{spec.k}",
        "RAY_TRAIN_V2_ENABLED": "1" if is_v2 else "0",
        "PYTHONUNBUFFERED": "1",
        # A driver that is asked to stop completes its records first.
        "RAY_JOB_STOP_WAIT_TIME_S": "15",
    }
    env["py_modules"] = [runtime.uri]
    if code is not None:
        env["working_dir"] = code.uri
    return env
