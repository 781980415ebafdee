"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict

from typing_extensions import NotRequired

from benchmarks.options import ROOT

PACKAGES = {"airflow": "apache-airflow", "task SDK": "apache-airflow-task-sdk", "ray": "ray", "torch": "torch"}
QUIET_LOAD = 0.5
"""Load average over one or five minutes, per core, above which the figures deserve a warning."""


class Machine(TypedDict):
    """A machine, and what is installed in our environment on it."""

    measured_at: str
    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    versions: dict[str, str]
    load_at_start: list[float]
    commit: NotRequired[str]
    """Of the code that was measured; with a + where it had changes. Absent outside a checkout."""


def this_machine() -> Machine:
    """The machine now: call it before the measuring begins, for the load."""
    from airflow_provider import __version__

    versions = {name: _version(package) for name, package in PACKAGES.items()}
    found = Machine(
        measured_at=datetime.now(timezone.utc).isoformat(timespec="minutes"),
        cpu=_found(r"model name\s*:\s*(.+)", "/proc/cpuinfo") or platform.processor() or "unknown",
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(int(_found(r"MemTotal:\s*(\d+) kB", "/proc/meminfo") or 0) / 2**20, 1),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions={"provider": __version__, **versions},
        load_at_start=[round(load, 2) for load in os.getloadavg()],
    )
    if commit := _git("rev-parse", "--short=10", "HEAD"):
        found["commit"] = commit + (
            "+" if _git("status", "--porcelain", "--", "airflow_provider", "benchmarks/*.py") else ""
        )
    return found


def is_quiet(machine: Machine) -> bool:
    """Whether nothing else of weight ran when the measuring began."""
    return max(machine["load_at_start"][:2]) <= QUIET_LOAD * machine["cores"]


def sentence(machine: Machine) -> str:
    """The machine in one line."""
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    commit = f"commit {machine['commit']}; " if "commit" in machine else ""
    load = " ".join(f"{one:g}" for one in machine["load_at_start"])
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']:g} GiB, {machine['kernel']}, "
        f"Python {machine['python']}; {versions}; {commit}load at start {load}; {machine['measured_at']}"
    )


def _git(*arguments: str) -> str:
    """What git says, or nothing."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S607 - whichever git there is
    return done.stdout.strip() if done.returncode == 0 else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _found(pattern: str, path: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text(encoding="utf-8"))
    except OSError:
        return None
    return found[1].strip() if found else None
