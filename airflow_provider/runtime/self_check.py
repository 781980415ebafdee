"""Looks at the cluster from inside a small job: `python -m airflow_provider.runtime.self_check`, sent by `doctor`.

Trains nothing. Its report is one line of the job's log; it ends with 0 whatever it finds.
"""

from __future__ import annotations

import os
import platform
import sys
import uuid
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import airflow_provider
from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.redaction import redact
from airflow_provider.core.self_check import MARK, REQUEST_FILE, SelfCheckReport, SelfCheckRequest, SelfCheckStep

if TYPE_CHECKING:
    from airflow_provider.runtime.storage import ExperimentStore

_PACKAGES = ("ray", "torch", "pyarrow", "pydantic")
_PROBE = ".ray-train-doctor"


def main() -> int:
    """Read the request beside this package's code, look, print the report."""
    request = SelfCheckRequest.model_validate_json(
        Path(airflow_provider.__file__).with_name(REQUEST_FILE).read_bytes(), context={"rendered": True}
    )
    report = SelfCheckReport(
        versions={"python": platform.python_version(), **{name: _installed(name) for name in _PACKAGES}},
        missing_seams=_seams(),
        bucket=tuple(check_bucket(request)) if request.storage_path is not None else (),
    )
    print(f"{MARK}{report.model_dump_json()}", flush=True)
    return 0


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _seams() -> tuple[str, ...] | None:
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    try:
        from airflow_provider.runtime.seams import missing_seams

        return tuple(missing_seams())
    except Exception as error:
        return (f"the check itself failed: {type(error).__name__}: {str(error)[:200]}",)


def check_bucket(request: SelfCheckRequest) -> list[SelfCheckStep]:
    """What a driver does to the bucket, with the cluster's own identity, on one small object."""
    opened: list[ExperimentStore] = []
    steps: list[SelfCheckStep] = []
    key = f"{_PROBE}-{uuid.uuid4().hex}.json"

    def step(action: str, look: Callable[[], object]) -> bool:
        try:
            look()
        except RayTrainError as error:
            steps.append(SelfCheckStep(action=action, error=f"{error.what}. {error.known}", change=error.change))
            return False
        except Exception as error:  # process edge: pyarrow may be missing; what was seen until here must be told
            steps.append(SelfCheckStep(action=action, error=redact(f"{type(error).__name__}: {error}")[:500]))
            return False
        steps.append(SelfCheckStep(action=action))
        return True

    def list_it() -> None:
        from airflow_provider.runtime.storage import open_store

        store = open_store(request.storage_path or "", request.storage)
        opened.append(store)
        # A local folder is made by the first look of a driver, which would be a write.
        if (request.storage_path or "").startswith("s3://") or not request.is_read_only:
            store.check_bucket()
        store.folders("")

    can_go_on = step("list (s3:ListBucket)", list_it)
    if can_go_on and not request.is_read_only and step("write (s3:PutObject)", lambda: opened[0].write(key, b"{}")):
        step("read (s3:GetObject)", lambda: opened[0].read(key))
        step("delete (s3:DeleteObject)", lambda: opened[0].delete(key))
    return steps


if __name__ == "__main__":
    sys.exit(main())
