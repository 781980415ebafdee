"""The peers, each in a virtual environment of its own, made by pip on first use.

A peer that can't be installed or imported is said to be so, with the error, where its figures would stand: left out, it would look as
if nobody had tried.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import MeasurementFailed, run_python
from benchmarks.options import SCRATCH

AIRFLOW = "apache-airflow==3.3.2"
"""The Airflow of our own environment: a peer on another one would be compared with another floor."""


@dataclass(frozen=True)
class Peer:
    """A package that starts Ray jobs from Airflow, and the operator that does so."""

    name: str
    packages: tuple[str, ...]
    """Pinned; empty for what our own environment has."""
    module: str
    operator: str

    @property
    def title(self) -> str:
        """The operator and the release that was measured."""
        return f"{self.operator} ({self.packages[0].replace('==', ' ')})" if self.packages else self.operator


OURS = Peer("ours", (), "airflow_provider.operators.ray_train", "RayTrainOperator")
ASTRO = Peer(
    "astro", ("astro-provider-ray==0.4.0", AIRFLOW, "ray[default]==2.60.0"), "ray_provider.operators", "SubmitRayJob"
)
GOOGLE = Peer(
    "google",
    ("apache-airflow-providers-google==22.8.0", AIRFLOW, "ray[default]==2.60.0"),
    "airflow.providers.google.cloud.operators.ray",
    "RaySubmitJobOperator",
)
PLAIN = Peer("plain", (), "ray.job_submission", "JobSubmissionClient")
"""Ray's own client, as people call it from a PythonOperator."""


@dataclass(frozen=True)
class Installed:
    """A peer's interpreter, or why there is none."""

    peer: Peer
    python: Path
    problem: str = ""
    """Empty when the peer can be imported."""


def install(peer: Peer, folder: Path = SCRATCH) -> Installed:
    """The peer's environment, made when it isn't there or was made for other pins; some minutes the first time."""
    if not peer.packages:
        return _tried(peer, Path(sys.executable))
    place = folder / peer.name
    python, stamp = place / "bin" / "python", place / "installed.txt"
    pins = "\n".join(peer.packages)
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != pins:
        sys.stderr.write(f"installing {peer.title} into {place} ...\n")
        shutil.rmtree(place, ignore_errors=True)
        problem = _ran(sys.executable, "-m", "venv", str(place)) or _ran(
            str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.packages
        )
        if problem:
            return Installed(peer, python, f"cannot be installed: {problem}")
        stamp.write_text(pins, encoding="utf-8")
    return _tried(peer, python)


def _tried(peer: Peer, python: Path) -> Installed:
    try:
        run_python(python, f"from {peer.module} import {peer.operator}; answer()")
    except MeasurementFailed as error:
        return Installed(peer, python, f"cannot be imported: {error}")
    return Installed(peer, python)


def _ran(*command: str) -> str:
    """What went wrong, or nothing."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
    return f"exit code {done.returncode}: {said[-1][:300]}" if done.returncode else ""
