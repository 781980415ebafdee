"""The plugin as Airflow loads it: cheap in every process, and with addresses that lead somewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from airflow_provider.plugin import RayTrainPlugin
from airflow_provider.plugin.lazy_app import URL_PREFIX, LazyApp
from airflow_provider.plugin.rendering import assets

PLUGIN = Path(__file__).resolve().parents[3] / "airflow_provider" / "plugin"


def test_loading_it_loads_no_web_framework() -> None:
    """Schedulers, triggerers and workers load plugins too."""
    program = (
        "import sys, airflow.plugins_manager; before = set(sys.modules); import airflow_provider.plugin;"
        "print(*sorted(m for m in set(sys.modules) - before if 'airflow_provider' in m or m in ('fastapi', 'jinja2')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    added = done.stdout.splitlines()[-1].split()
    assert "airflow_provider.plugin" in added
    assert not {"fastapi", "jinja2", "airflow_provider.plugin.app", "airflow_provider.storage"} & set(added)


@pytest.mark.parametrize("view", RayTrainPlugin.external_views, ids=lambda view: view["destination"])
def test_views_have_relative_addresses_within_the_app(view: dict[str, Any]) -> None:
    """Airflow may be served below a path of its own: the UI resolves them against it."""
    for address in (view["href"], view["icon"], view["icon_dark_mode"]):
        assert address.startswith(f"{URL_PREFIX.removeprefix('/')}/")
    assert view["icon"].rpartition("/")[2] in assets()
    assert view["icon_dark_mode"].rpartition("/")[2] in assets()


def test_no_two_views_have_one_route() -> None:
    """Airflow would leave one of them out."""
    routes = [view["url_route"] for view in RayTrainPlugin.external_views]
    assert len(set(routes)) == len(routes)


def test_the_app_is_made_at_the_first_request() -> None:
    app = LazyApp()
    assert app._app is None
    with TestClient(app) as client:  # type: ignore[arg-type]  # an ASGI app
        assert client.get("/static/lineage.css").status_code == 200
        made = app._app
        assert client.get("/static/lineage.js").headers["content-type"].startswith("text/javascript")
    assert app._app is made


def test_no_template_marks_anything_as_safe() -> None:
    """Escaping is by construction: there is no way around it in a template."""
    for template in (PLUGIN / "templates").iterdir():
        text = template.read_text()
        assert "|safe" not in text.replace(" ", ""), template.name
        assert "autoescape" not in text, template.name
        assert "style=" not in text, template.name


def test_the_script_and_the_styles_load_nothing_from_elsewhere() -> None:
    for name in ("lineage.js", "lineage.css"):
        text = assets()[name].body.decode()
        for word in ("http://", "https://", "//cdn", "@import", "eval(", "innerHTML ="):
            assert word not in text, (name, word)
