"""What importing the storage room may load."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import airflow_provider.storage.experiment_records, airflow_provider.storage.object_store, airflow_provider.storage.local
heavy = {"airflow", "boto3", "botocore", "ray", "pyarrow"} & {name.partition(".")[0] for name in sys.modules}
assert not heavy, heavy
"""


def test_records_and_protocol_load_no_sdk() -> None:
    """DESIGN 6: parsing a Dag must not load boto3; S3 is loaded when a store is opened."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
