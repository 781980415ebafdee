"""A real Airflow in its four processes: API server, scheduler with LocalExecutor, triggerer, Dag processor."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import httpx

from tests.stack.airflow_client import AirflowClient
from tests.stack.process import (
    LOOPBACK,
    HeldProcess,
    Service,
    StackError,
    clean_env,
    free_port,
    program,
    tail,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import psutil

# The log servers (`--skip-serve-logs`) can't be bound to loopback; on one machine the API server reads the files.
_COMMANDS: Final = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "triggerer": ("triggerer", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
}


class AirflowComponent(Service):
    """One Airflow process. `kill` ends its whole tree (the scheduler's holds the running tasks), `kill_main` it alone."""

    stop_grace_s = 5.0

    def __init__(self, name: str, state_dir: Path, *, env: Callable[[], Mapping[str, str]]) -> None:
        """Name one of Airflow's commands."""
        super().__init__(state_dir)
        self.name = name
        self._env = env

    def start(self) -> None:
        """Start it; `AirflowServices` waits for its health, since the API server alone knows it."""
        argv = [program("airflow"), *_COMMANDS[self.name]]
        self.process = HeldProcess(argv, log=self.log, env=self._env(), cwd=self.state_dir)


class AirflowServices(Service):
    """Airflow on loopback with one admin user, ready when every component reports healthy.

    Times are shortened so that faults show within a test: a task without heartbeat is given up after `heartbeat_timeout_s`, a
    triggerer after `triggerer_threshold_s` (Airflow's defaults are 300 s and 30 s).
    """

    name = "airflow"
    username = "admin"
    visitor = "visitor"
    """A user who may log in and see nothing."""

    def __init__(
        self,
        state_dir: Path,
        *,
        database_url: str,
        dags: Sequence[Path] = (),
        connections: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        heartbeat_timeout_s: int = 20,
        triggerer_threshold_s: int = 15,
    ) -> None:
        """`connections` maps an id to its URI or JSON; `env` is added to every component (`AIRFLOW__SECTION__KEY` settings too)."""
        super().__init__(state_dir)
        self.database_url = database_url
        self.dags = [folder.resolve() for folder in dags]
        self.home = state_dir / "airflow"
        self.password = secrets.token_urlsafe(12)
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        self._times = {"heartbeat_timeout_s": heartbeat_timeout_s, "triggerer_threshold_s": triggerer_threshold_s}
        self._secrets = {name: secrets.token_urlsafe(32) for name in ("jwt", "api")}
        self._fernet_key = base64.urlsafe_b64encode(os.urandom(32)).decode()
        self._connections = dict(connections or {})
        self._extra_env = dict(env or {})
        self.components = {name: AirflowComponent(name, state_dir, env=self.env) for name in _COMMANDS}

    @property
    def api_server(self) -> AirflowComponent:
        """REST API, UI, and the execution API that tasks talk to."""
        return self.components["api-server"]

    @property
    def scheduler(self) -> AirflowComponent:
        """Scheduler and, below it, LocalExecutor's workers with the running tasks."""
        return self.components["scheduler"]

    @property
    def triggerer(self) -> AirflowComponent:
        """Runs the triggers of deferred tasks."""
        return self.components["triggerer"]

    @property
    def dag_processor(self) -> AirflowComponent:
        """Parses the Dag files."""
        return self.components["dag-processor"]

    def add_connection(self, conn_id: str, value: str) -> None:
        """One more connection, as URI or JSON; known to components that start afterwards."""
        self._connections[conn_id] = value

    def start(self) -> None:
        """Migrate the database, start the four, wait until all are healthy."""
        has_tasks = self.home.exists()
        self.home.mkdir(parents=True, exist_ok=True)
        passwords = self.home / "passwords.json"
        passwords.write_text(json.dumps(dict.fromkeys((self.username, self.visitor), self.password)))
        passwords.chmod(0o600)
        self.run_cli("db", "migrate")
        self.api_server.start()
        if has_tasks:
            # A task whose worker finds no API server fails before it begins, and its tries are counted on.
            with self.client() as client:
                wait_until(
                    lambda: _answers(client),
                    timeout_s=180,
                    what="Airflow's API server",
                    process=self.api_server.process,
                )
        for component in self.components.values():
            if component is not self.api_server:
                component.start()
        self.wait_until_healthy()

    def wait_until_healthy(self, *, timeout_s: float = 180.0) -> None:
        """Wait until every component is up; one that ended raises with its log."""
        with self.client() as client:
            wait_until(lambda: self._is_healthy(client), timeout_s=timeout_s, what="Airflow", every_s=0.3)

    def stop(self) -> None:
        """Stop all four at the same time."""
        with ThreadPoolExecutor(len(self.components)) as pool:
            list(pool.map(lambda component: component.stop(), self.components.values()))

    def kill(self) -> None:
        """SIGKILL all four and the running tasks."""
        with ThreadPoolExecutor(len(self.components)) as pool:
            list(pool.map(lambda component: component.kill(), self.components.values()))

    def is_alive(self) -> bool:
        """Whether all four run."""
        return all(component.is_alive() for component in self.components.values())

    def processes(self) -> list[psutil.Process]:
        """All living processes of the four."""
        return [process for component in self.components.values() for process in component.processes()]

    def client(self) -> AirflowClient:
        """A REST client, logged in as the admin."""
        return self.client_of(self.username)

    def client_of(self, username: str) -> AirflowClient:
        """Another user's."""
        return AirflowClient(self.url, username=username, password=self.password)

    def run_cli(self, *arguments: str, timeout_s: float = 180.0) -> str:
        """Run an `airflow` command in this environment; the answer is its stdout."""
        log = self.state_dir / "airflow-cli.log"
        with log.open("a") as errors:
            done = subprocess.run(
                [program("airflow"), *arguments],
                env=self.env(),
                cwd=self.state_dir,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                check=False,
                timeout=timeout_s,
            )
        if done.returncode:
            message = f"airflow {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{tail(log)}"
            raise StackError(message)
        return done.stdout

    def env(self) -> dict[str, str]:
        """The environment of every component, and of the tasks."""
        settings = {f"AIRFLOW__{key}": value for key, value in self._settings().items()}
        connections = {f"AIRFLOW_CONN_{name.upper()}": value for name, value in self._connections.items()}
        own = {"AIRFLOW_HOME": str(self.home), **settings, **connections, **self._extra_env}
        return clean_env(self.state_dir / "airflow-user", own)

    def _settings(self) -> dict[str, str]:
        return {
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": "8",
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__FERNET_KEY": self._fernet_key,
            "CORE__HOSTNAME_CALLABLE": "platform.node",  # the default asks the name server
            "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{self.username}:admin,{self.visitor}:",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "DATABASE__SQL_ALCHEMY_CONN": self.database_url,
            "API__BASE_URL": self.url,
            "API__HOST": LOOPBACK,
            "API__PORT": str(self.port),
            "API__WORKERS": "1",
            "API__SECRET_KEY": self._secrets["api"],
            "API_AUTH__JWT_SECRET": self._secrets["jwt"],
            "LOGGING__BASE_LOG_FOLDER": str(self.home / "logs"),
            "DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(self.home / "bundles"),
            "DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(self._bundles()),
            "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "2",
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "20",
            "DAG_PROCESSOR__PARSING_PROCESSES": "1",
            "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "20",
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(self._times["heartbeat_timeout_s"]),
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
            "SCHEDULER__ENABLE_HEALTH_CHECK": "False",
            "SCHEDULER__USE_JOB_SCHEDULE": "True",
            "TRIGGERER__JOB_HEARTBEAT_SEC": "2",
            "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": str(self._times["triggerer_threshold_s"]),
            "USAGE_DATA_COLLECTION__ENABLED": "False",
        }

    def _bundles(self) -> list[dict[str, object]]:
        classpath = "airflow.dag_processing.bundles.local.LocalDagBundle"
        return [
            {
                "name": f"{folder.name}-{index}",
                "classpath": classpath,
                "kwargs": {"path": str(folder), "refresh_interval": 5},
            }
            for index, folder in enumerate(self.dags)
        ]

    def _is_healthy(self, client: AirflowClient) -> bool:
        for component in self.components.values():
            if not component.is_alive():
                message = f"Airflow's {component.name} ended; {component.log}:\n{tail(component.log)}"
                raise StackError(message)
        health = _health(client)
        return all(
            health.get(name) == "healthy" for name in ("metadatabase", "scheduler", "triggerer", "dag_processor")
        )


def _answers(client: AirflowClient) -> bool:
    return _health(client).get("metadatabase") == "healthy"


def _health(client: AirflowClient) -> dict[str, str | None]:
    """Of each component; empty while nobody answers."""
    try:
        return client.health()
    except (httpx.HTTPError, KeyError, ValueError):
        return {}
