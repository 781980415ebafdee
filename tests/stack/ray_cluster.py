"""A real Ray cluster of one node, with token authentication, that several can run beside one another."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from tests.stack.process import LOOPBACK, HeldProcess, Service, clean_env, free_port, program, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

_MEBIBYTE = 1024 * 1024
_PARAMETERS = {"dashboard-agent-grpc-port": "metrics_agent_port"}
"""Names of Ray's parameters that differ from their flags."""


def _node_ports() -> dict[str, int]:
    """A port for each server of a node, by the flag that sets it."""
    flags = (
        "object-manager-port",
        "node-manager-port",
        "dashboard-agent-listen-port",
        "dashboard-agent-grpc-port",
        "runtime-env-agent-port",
        "metrics-export-port",
    )
    return {flag: free_port() for flag in flags}


class RayCluster(Service):
    """`ray start --head` on loopback; jobs are submitted to `address` with `token`.

    `kill` and `start` replace the cluster: same address and token, another session, no memory of its jobs.
    Never stopped by `ray stop`, which ends every Ray of this machine.
    """

    name = "ray"
    stop_grace_s = 3.0  # Ray has nothing to save: what is left by then is killed

    def __init__(
        self,
        state_dir: Path,
        *,
        num_cpus: int = 4,
        env: Mapping[str, str] | None = None,
        object_store_mb: int = 200,
        token: str | None = None,
        bin_dir: Path | None = None,
    ) -> None:
        """`num_cpus` is what Ray schedules by, not a limit. `env` reaches the jobs too: hand it the S3 server's `env()`.

        `bin_dir` is where another Ray is installed, with its own Python.
        """
        super().__init__(state_dir)
        self.num_cpus = num_cpus
        self.object_store_mb = object_store_mb
        self.token = token or secrets.token_hex(32)
        self.port = free_port()
        self.dashboard_port = free_port()
        self.address = f"http://{LOOPBACK}:{self.dashboard_port}"
        self.shown_address = self.address
        """What Airflow is told: a gate's address where one stands before the dashboard."""
        self.bin_dir = bin_dir
        self._env = dict(env or {})
        self._other_ports = _node_ports() | {"ray-client-server-port": free_port()}
        # Ray puts Unix sockets some 60 characters deep into this; the kernel allows 107 in all.
        self.temp_dir: Path | None = None

    def start(self) -> None:
        """Start the head and wait until the Jobs API answers and a node is there to run a job."""
        self._remove_temp_dir()
        self.temp_dir = Path(tempfile.mkdtemp(prefix="rt-ray-"))
        self.process = HeldProcess(
            self._command(), log=self.log, env=self.env(), cwd=self.temp_dir, scratch=self.temp_dir
        )
        wait_until(self._is_ready, timeout_s=120, what="Ray head", process=self.process, every_s=0.2)

    def stop(self) -> None:
        """Stop every process of this cluster, its jobs' included."""
        super().stop()
        self._remove_temp_dir()

    def kill(self) -> None:
        """SIGKILL all of the cluster at once; with `start` after it, the cluster was replaced."""
        super().kill()
        self._remove_temp_dir()

    kill_head = kill

    def env(self) -> dict[str, str]:
        """The environment of the cluster's processes, and so of its jobs."""
        own = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "TMPDIR": str(self.temp_dir or self.state_dir),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DISABLE_IMPORT_WARNING": "1",
            # A full disk of the developer must not stop the cluster, nor busy memory kill a worker behind a test's back.
            "RAY_local_fs_capacity_threshold": "0.99",
            "RAY_memory_monitor_refresh_ms": "0",
            # Ray's own 30 s are not enough for a raylet to start beside a busy test suite.
            "RAY_raylet_start_wait_time_s": "120",
            # Ray replaces 127.0.0.1 by the machine's own address unless it is told, in these words, that this is no cluster: with
            # it, all of Ray's servers that can be bound listen on loopback only.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "OMP_NUM_THREADS": "1",
            # Two workers on one host find one another through the loopback interface only.
            "GLOO_SOCKET_IFNAME": "lo",
            "TP_SOCKET_IFNAME": "lo",
        }
        found = clean_env(self.state_dir / "ray-home", {**own, **self._env})
        return found if self.bin_dir is None else found | {"PATH": f"{self.bin_dir}{os.pathsep}{found['PATH']}"}

    def session_logs(self) -> Path:
        """The folder of this session's logs (job drivers, workers, raylet); gone after `stop`."""
        assert self.temp_dir is not None
        return self.temp_dir / "session_latest" / "logs"

    def airflow_connection(self) -> str:
        """This cluster as the JSON of an Airflow connection of type `ray`."""
        return json.dumps({"conn_type": "ray", "host": self.shown_address, "password": self.token})

    def get(self, path: str, *, token: str | None = None, timeout_s: float = 5.0) -> bytes:
        """GET a path of the dashboard with the token, or with another one."""
        request = urllib.request.Request(f"{self.address}{path}")
        request.add_header("Authorization", f"Bearer {self.token if token is None else token}")
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return bytes(answer.read())

    def nodes(self) -> dict[str, str]:
        """Ids of the living nodes by name."""
        summary = json.loads(self.get("/nodes?view=summary"))["data"]["summary"]
        return {
            str(node["raylet"]["nodeName"]): str(node["raylet"]["nodeId"])
            for node in summary
            if node.get("raylet", {}).get("state") == "ALIVE"
        }

    def drain(self, node_id: str, *, deadline_s: int) -> None:
        """Tell Ray, as a cloud does of a spot machine, that a node will be taken away."""
        command = [self._ray(), "drain-node", f"--address={LOOPBACK}:{self.port}", f"--node-id={node_id}"]
        why = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot reclaim"]
        subprocess.run(
            [*command, *why, f"--deadline-remaining-seconds={deadline_s}"], env=self.env(), check=True, timeout=60
        )

    def session_name(self) -> str:
        """The session's name: another one after each start."""
        return str(json.loads(self.get("/api/version"))["session_name"])

    def _is_ready(self) -> bool:
        try:
            self.get("/api/jobs/")
            return bool(self.nodes())
        except (urllib.error.URLError, OSError, KeyError, ValueError):
            return False

    def _ray(self) -> str:
        return program("ray") if self.bin_dir is None else str(self.bin_dir / "ray")

    def _command(self) -> list[str]:
        return [
            self._ray(),
            "start",
            "--head",
            "--block",
            f"--node-ip-address={LOOPBACK}",
            f"--port={self.port}",
            f"--dashboard-host={LOOPBACK}",
            f"--dashboard-port={self.dashboard_port}",
            "--include-dashboard=true",
            "--disable-usage-stats",
            f"--num-cpus={self.num_cpus}",
            "--num-gpus=0",
            f"--object-store-memory={self.object_store_mb * _MEBIBYTE}",
            f"--temp-dir={self.temp_dir}",
            "--min-worker-port=0",
            "--max-worker-port=0",
            *(f"--{flag}={port}" for flag, port in self._other_ports.items()),
        ]

    def _remove_temp_dir(self) -> None:
        """Keep the logs with the state, drop the rest (sockets, packages, spilled objects)."""
        if self.temp_dir is None:
            return
        for session in sorted(self.temp_dir.glob("session_2*")):
            kept = self.state_dir / "ray-sessions" / session.name
            if (session / "logs").is_dir():
                shutil.copytree(
                    session / "logs", kept, dirs_exist_ok=True, symlinks=True, ignore_dangling_symlinks=True
                )
        shutil.rmtree(self.temp_dir, ignore_errors=True)
        self.temp_dir = None


class RayNode(Service):
    """Another node of a cluster, on the same machine: `kill` loses it with all that runs there."""

    stop_grace_s = 3.0

    def __init__(self, cluster: RayCluster, name: str, *, num_cpus: int, resources: Mapping[str, float]) -> None:
        """`resources` are custom ones, so that a test decides what is placed here."""
        super().__init__(cluster.state_dir)
        self.name, self.cluster, self.num_cpus, self.resources = name, cluster, num_cpus, dict(resources)

    def start(self) -> None:
        """Join, and wait until the head counts this node."""
        assert self.cluster.temp_dir is not None
        parameters = {
            "gcs_address": f"{LOOPBACK}:{self.cluster.port}",
            "node_ip_address": LOOPBACK,
            "node_name": self.name,
            # The session's folder is shared on one machine: two agents unpacking into one place delete each other's files.
            "runtime_env_dir_name": f"runtime_resources_{self.name}",
            "num_cpus": self.num_cpus,
            "num_gpus": 0,
            "resources": self.resources,
            "object_store_memory": self.cluster.object_store_mb * _MEBIBYTE,
            **{_PARAMETERS.get(flag, flag.replace("-", "_")): port for flag, port in _node_ports().items()},
        }
        command = [sys.executable, str(Path(__file__).with_name("ray_node_main.py")), json.dumps(parameters)]
        self.process = HeldProcess(command, log=self.log, env=self.cluster.env(), cwd=self.cluster.temp_dir)
        wait_until(self._is_ready, timeout_s=60, what=f"Ray node {self.name}", process=self.process, every_s=0.2)

    def node_id(self) -> str:
        """Ray's id of this node."""
        return self.cluster.nodes()[self.name]

    def _is_ready(self) -> bool:
        return self.name in self.cluster.nodes()
