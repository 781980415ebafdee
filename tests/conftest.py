"""What holds for all tests: a private Airflow home and no way to the developer's own clusters and clouds."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

import hypothesis

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("without deadline", deadline=None)
hypothesis.settings.load_profile("without deadline")

# Before anything imports airflow, which reads its settings, and writes into its home, at import.
for name in [name for name in os.environ if name.startswith(("AIRFLOW", "AWS_", "RAY_"))]:
    del os.environ[name]
_home = tempfile.mkdtemp(prefix="rt-tests-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)
os.environ |= {
    "AIRFLOW_HOME": _home,
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
    "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    "RAY_AUTH_MODE": "token",  # Ray's own default hangs on a file in the home
    "RAY_USAGE_STATS_ENABLED": "0",
}

pytest_plugins = ["airflow_provider.testing.plugin"]
