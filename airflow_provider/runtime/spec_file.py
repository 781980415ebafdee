"""The job's document, which lies beside this package's code in the job's package."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

import airflow_provider
from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.field_types import shown_part
from airflow_provider.core.job import JOB_SPEC_FILE
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.record_parts import SCHEMA_VERSION


def spec_path() -> str:
    """Where the document lies in this job."""
    return str(Path(airflow_provider.__file__).with_name(JOB_SPEC_FILE))


def read_spec(path: str) -> JobSpec:
    """Read and check it. Raises InvalidConfig: without it this is no job of ours."""
    try:
        spec = JobSpec.model_validate_json(Path(path).read_bytes(), context={"rendered": True})
    except FileNotFoundError:
        raise InvalidConfig(f"{path} is missing", change="submit the job with RayTrainOperator") from None
    except OSError as error:
        raise InvalidConfig(f"{path} can't be read", known=error.strerror or type(error).__name__) from error
    except ValidationError as error:
        where = ", ".join(".".join(shown_part(p) for p in e["loc"]) for e in error.errors()[:5])
        raise InvalidConfig(f"{path} can't be read", known=f"wrong fields: {where}") from None
    if spec.schema_version > SCHEMA_VERSION:
        raise InvalidConfig(f"{path} has schema_version {spec.schema_version}, this code reads {SCHEMA_VERSION}")
    return spec
