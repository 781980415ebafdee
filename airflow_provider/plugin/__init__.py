"""The provider's Airflow plugin: what must run inside Airflow's own processes."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from airflow_provider.listeners import manual_stop


class RayTrainPlugin(AirflowPlugin):
    """Registers the listener that stops a training when a person marks its task failed or successful."""

    name = "ray_train"
    listeners = [manual_stop]  # noqa: RUF012 - Airflow's attribute
