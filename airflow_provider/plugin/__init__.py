"""The provider's Airflow plugin: what must run inside Airflow's own processes, and the lineage page in its UI."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from airflow_provider.links.ray_train import LINEAGE_TAB
from airflow_provider.listeners import manual_stop
from airflow_provider.plugin.lazy_app import URL_PREFIX, LazyApp

_VIEW = "ray-train"
"""Paths are relative: Airflow's UI resolves them against the address that it is served under, whatever that is."""


class RayTrainPlugin(AirflowPlugin):
    """Registers the listener that stops a training when a person marks its task, and the lineage page with its API."""

    name = "ray_train"
    listeners = [manual_stop]  # noqa: RUF012 - Airflow's attribute
    fastapi_apps = [{"app": LazyApp(), "url_prefix": URL_PREFIX, "name": "Ray Train lineage"}]  # noqa: RUF012 - same
    external_views = [  # noqa: RUF012 - same
        {
            "name": "Lineage",
            "destination": "task_instance",
            "href": f"{_VIEW}/lineage?dag_id={{DAG_ID}}&run_id={{RUN_ID}}&task_id={{TASK_ID}}&map_index={{MAP_INDEX}}",
            "url_route": LINEAGE_TAB,
            "icon": f"{_VIEW}/static/lineage.svg",
            "icon_dark_mode": f"{_VIEW}/static/lineage-dark.svg",
        },
        {
            "name": "Lineage",
            "destination": "dag_run",
            "href": f"{_VIEW}/run?dag_id={{DAG_ID}}&run_id={{RUN_ID}}",
            "url_route": "ray-train-lineage-of-run",
            "icon": f"{_VIEW}/static/lineage.svg",
            "icon_dark_mode": f"{_VIEW}/static/lineage-dark.svg",
        },
        {
            "name": "Ray Train lineage",
            "destination": "nav",
            "category": "browse",
            "href": f"{_VIEW}/experiments",
            "url_route": "ray-train",
            "icon": f"{_VIEW}/static/lineage.svg",
            "icon_dark_mode": f"{_VIEW}/static/lineage-dark.svg",
        },
    ]
