"""What Airflow asks a provider for."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Provider metadata in Airflow's `provider.yaml` schema."""
    return {
        "package-name": "airflow-provider-ray-train",
        "name": "Ray Train",
        "description": "Ray Train jobs that survive: retries restore, checkpoints keep their lineage.",
        "integrations": [
            {
                "integration-name": "Ray Train",
                "external-doc-url": "https://docs.ray.io/en/latest/train/train.html",
                "tags": ["software"],
            }
        ],
        "operators": [
            {"integration-name": "Ray Train", "python-modules": ["airflow_provider.operators.ray_train"]},
        ],
        "sensors": [{"integration-name": "Ray Train", "python-modules": ["airflow_provider.sensors.ray_train"]}],
        "hooks": [{"integration-name": "Ray Train", "python-modules": ["airflow_provider.hooks.ray"]}],
        "triggers": [
            {
                "integration-name": "Ray Train",
                "python-modules": ["airflow_provider.triggers.ray_train", "airflow_provider.triggers.ray_train_sensor"],
            }
        ],
        "task-decorators": [
            {"name": "ray_train", "class-name": "airflow_provider.decorators.ray_train.ray_train_task"}
        ],
        "extra-links": [
            "airflow_provider.links.ray_train.RayJobLink",
            "airflow_provider.links.ray_train.ExperimentLink",
            "airflow_provider.links.ray_train.LineageLink",
        ],
        "connection-types": [_ray_connection()],
        "cli": ["airflow_provider.cli.definition.ray_train_commands"],
        # Loaded only with lazy discovery off; the `airflow.plugins` entry point does it otherwise.
        "plugins": [{"name": "ray_train", "plugin-class": "airflow_provider.plugin.RayTrainPlugin"}],
    }


def _ray_connection() -> dict[str, Any]:
    return {
        "connection-type": "ray",
        "hook-class-name": "airflow_provider.hooks.ray.RayHook",
        "hook-name": "Ray",
        "ui-field-behaviour": {
            "hidden-fields": ["login", "schema"],
            "relabeling": {"host": "Dashboard address", "password": "Token"},
            "placeholders": {
                "host": "https://gateway.example/ray/team-a or http://10.0.0.5:8265 (not ray://)",
                "port": "8265, where the address names none",
                "password": "Ray auth token (RAY_AUTH_MODE=token); empty for a cluster without one",
            },
        },
        "conn-fields": {
            "verify": {
                "label": "Verify TLS",
                "description": "Check the dashboard's certificate. Off only for tests: the token could be read on the way.",
                "schema": {"type": "boolean", "default": True},
            },
            "ca_file": {
                "label": "CA file",
                "description": "PEM file of a private certificate authority, at this path on all of Airflow's machines. Empty: the public ones.",
                "schema": {"type": ["string", "null"], "default": None},
            },
            "header_name": {
                "label": "Token header",
                "description": "The header that carries the token: X-Ray-Authorization where a gateway uses Authorization itself.",
                "schema": {
                    "type": "string",
                    "default": "Authorization",
                    "enum": ["Authorization", "X-Ray-Authorization"],
                },
            },
            "headers": {
                "label": "Further headers",
                "description": 'JSON object of header names and values, such as {"X-Team": "a"}; the values count as secret.',
                "schema": {"type": ["string", "null"], "default": None, "format": "password"},
            },
        },
    }
