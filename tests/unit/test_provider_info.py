"""What Airflow asks of a provider: metadata, entry points, and an import that stays cheap."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import airflow
import jsonschema  # type: ignore[import-untyped]  # a dependency of Airflow without types here
import pytest
from airflow.sdk._shared.module_loading import import_string

from airflow_provider.hooks.ray import ALLOWED_EXTRAS, RayHook
from airflow_provider.provider_info import get_provider_info

HEAVY = ("ray", "torch", "boto3", "botocore", "pyarrow", "pandas", "kubernetes", "numpy", "aiohttp")


@pytest.fixture
def info() -> dict[str, Any]:
    return get_provider_info()


def test_it_is_valid_by_airflows_schema(info: dict[str, Any]) -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)
    known = set(schema["properties"])
    assert set(info) - known <= {"description", "integrations"}, "Airflow ignores what it does not know"


def test_everything_it_names_exists(info: dict[str, Any]) -> None:
    modules = [
        m
        for room in ("operators", "sensors", "hooks", "triggers")
        for entry in info[room]
        for m in entry["python-modules"]
    ]
    for module in modules:
        import_module(module)
    decorators = [entry["class-name"] for entry in info["task-decorators"]]
    for path in [
        *info["extra-links"],
        *info["cli"],
        *decorators,
        *(plugin["plugin-class"] for plugin in info["plugins"]),
    ]:
        import_string(path)
    names = {entry["integration-name"] for entry in info["integrations"]}
    assert {
        entry["integration-name"] for room in ("operators", "sensors", "hooks", "triggers") for entry in info[room]
    } == names


def test_the_connection_form_and_the_hook_agree(info: dict[str, Any]) -> None:
    """A field that the hook refuses could never be saved; one without a field could only be set by hand."""
    (form,) = info["connection-types"]
    assert import_string(form["hook-class-name"]) is RayHook
    assert (form["connection-type"], form["hook-name"]) == (RayHook.conn_type, RayHook.hook_name)
    assert set(form["conn-fields"]) == ALLOWED_EXTRAS


def test_the_form_as_it_is_saved_untouched_is_a_connection(
    info: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (form,) = info["connection-types"]
    extra = {name: one["schema"].get("default") for name, one in form["conn-fields"].items()}
    monkeypatch.setenv("AIRFLOW_CONN_RAY_X", json.dumps({"conn_type": "ray", "host": "h", "extra": extra}))
    address, credentials = RayHook("ray_x").target()
    assert (str(address), credentials.verify) == ("http://h:8265", True)


def test_secrets_of_the_form_are_hidden(info: dict[str, Any]) -> None:
    (form,) = info["connection-types"]
    assert form["conn-fields"]["headers"]["schema"]["format"] == "password"
    assert form["ui-field-behaviour"]["relabeling"]["password"] == "Token"


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("apache_airflow_provider", "provider_info", "airflow_provider.provider_info:get_provider_info"),
        ("airflow.plugins", "ray_train", "airflow_provider.plugin:RayTrainPlugin"),
    ],
)
def test_the_entry_points_are_installed_and_load(group: str, name: str, value: str) -> None:
    (point,) = [p for p in distribution(get_provider_info()["package-name"]).entry_points if p.group == group]
    assert (point.name, point.value) == (name, value)
    assert callable(point.load())


@pytest.mark.parametrize(
    "module",
    [
        "airflow_provider.operators.ray_train",
        "airflow_provider.sensors.ray_train",
        "airflow_provider.decorators.ray_train",
        "airflow_provider.plugin",
    ],
)
def test_importing_it_loads_nothing_heavy(module: str) -> None:
    """Every DAG processor, worker and triggerer imports the one, every process of Airflow's the other."""
    program = (
        "import sys, airflow.sdk; from airflow.sdk import BaseOperator, BaseHook, BaseOperatorLink;"
        "import airflow.plugins_manager; before = set(sys.modules);"
        f"import {module}; print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    added = done.stdout.splitlines()[-1].split()
    assert module in added
    assert [name for name in added if name.partition(".")[0] in HEAVY] == []


def test_what_submits_and_stops_needs_no_asyncio_client() -> None:
    """aiohttp takes a tenth of a second or more to import, in each try."""
    program = (
        "import sys; from airflow_provider.client import ClusterAddress, SyncJobsClient\n"
        "with SyncJobsClient(ClusterAddress.parse('127.0.0.1:1')) as client:\n"
        "    try: client.version()\n"
        "    except Exception as error: print(type(error).__name__, 'httpx' in sys.modules, 'aiohttp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["ClusterUnreachable", "True", "False"]


def test_the_runtime_is_never_imported_on_airflows_side() -> None:
    program = "import sys, airflow_provider.operators.session; print('airflow_provider.runtime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split()[-1] == "False"
