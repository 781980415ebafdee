"""docs/cli.md: its samples are what the commands print, its commands and options exist, its exit codes are the code's."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider.cli import exit_codes
from airflow_provider.client.address import ClusterAddress
from airflow_provider.core import layout
from airflow_provider.core.self_check import SelfCheckReport, SelfCheckStep
from airflow_provider.testing.jobs_api import FakeJobsServer
from tests.support.command_line import CommandLine, make_older
from tests.unit.cli.sample import KEY, STORAGE_PATH, URI, Sample
from tests.unit.cli.test_definition import actions
from tests.unit.cli.test_doctor import ends_with

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text()
SAMPLES = re.findall(r"^```text\n\$ (airflow ray-train .*?)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^(?:\$ )?(airflow ray-train [^\n]*)$", PAGE.replace("\\\n", " "), re.MULTILINE)
_CHANGING = (
    (re.compile(r"http://127\.0\.0\.1:\d+"), "http://ray.example:8265"),
    (re.compile(r"to 127\.0\.0\.1$", re.MULTILINE), "to ray.example"),
    (re.compile(r"apache-airflow .*?Python [\d.]+", re.DOTALL), "apache-airflow ..."),
    (re.compile(r"ray-train-doctor-[0-9a-f]{12}"), "ray-train-doctor-..."),
    (re.compile(r"\d+ files, \d+ kB"), "... files, ... kB"),
    (re.compile(r"by \w+:"), "by jo:"),
    (re.compile(r"\d+ d(?: \d+ h)? ago"), "40 d ago"),
)
REPORT = SelfCheckReport(
    versions={"python": "3.11.9", "ray": "2.60.0", "torch": "2.9.0", "pyarrow": "21.0.0", "pydantic": "2.12.0"},
    missing_seams=(),
    bucket=tuple(
        SelfCheckStep(action=action)
        for action in (
            "list (s3:ListBucket)",
            "write (s3:PutObject)",
            "read (s3:GetObject)",
            "delete (s3:DeleteObject)",
        )
    ),
)


@pytest.fixture
def root(
    tmp_path: Path, server: FakeJobsServer, in_airflow: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The page's bucket as a folder, its cluster, and its Airflow."""
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps({"conn_type": "aws"}))
    root = tmp_path / "churn"
    sample = Sample(session_name=server.session_name)
    path = sample.at(root)
    half = path / layout.attempt(1, 1) / "checkpoint_2026-11-29_12-05-00.123456"
    half.mkdir()
    (half / "model.pt").write_bytes(b"w" * 9_100)
    (path.parent / "another").mkdir()
    make_older(root, days=40)
    metadata = {
        "airflow_dag_id": KEY.dag_id,
        "airflow_run_id": KEY.run_id,
        "airflow_task_id": KEY.task_id,
        "experiment": str(path),
        "attempt": "g1/a1",
    }
    server.add_job(sample.job(1), status="RUNNING", metadata=metadata)
    server.add_job(sample.job(2), status="FAILED", metadata=metadata | {"attempt": "g1/a2"})
    server.driver = ends_with(REPORT)
    in_airflow("up_for_retry", try_number=2, key=KEY)
    return root


@pytest.fixture(autouse=True)
def _away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server stands for one on another machine, `ray.example`, to which a token travels in clear."""
    monkeypatch.setattr(ClusterAddress, "is_loopback", False)


def as_on_the_page(text: str, root: Path) -> str:
    """Without what differs from machine to machine."""
    text = text.replace(f"file://{root}", STORAGE_PATH).replace(str(root), STORAGE_PATH)
    for pattern, instead in _CHANGING:
        text = pattern.sub(instead, text)
    return text


def test_there_is_a_sample_for_each_command() -> None:
    words = [shlex.split(command)[2:] for command, _ in SAMPLES]
    shown = {" ".join(w[: 2 if w[0] == "checkpoints" else 1]) for w in words}
    assert shown >= set(actions()) - {"checkpoints release"}


@pytest.mark.parametrize(("command", "printed"), SAMPLES, ids=[command[18:60] for command, _ in SAMPLES])
def test_a_sample_is_what_is_printed(cli: CommandLine, root: Path, command: str, printed: str) -> None:
    words = [word.replace(STORAGE_PATH, str(root)) for word in shlex.split(command)[2:]]
    said = cli(*words)
    assert as_on_the_page(said.out + said.err, root) == printed


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_can_be_given(cli: CommandLine, command: str) -> None:
    """Unknown options are a usage error of the parser."""
    words = shlex.split(command)[2:]
    cli._parser.parse_args(["ray-train", *words])


def test_options_that_the_page_names_exist() -> None:
    known = {flag for action in actions().values() for arg in action.args for flag in arg.flags}
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) <= known | {"--help"}


def test_the_exit_codes_are_the_codes() -> None:
    codes = {int(n) for n in re.findall(r"^\| (\d) \|", PAGE, re.MULTILINE)}
    assert codes == {
        exit_codes.OK,
        exit_codes.PROBLEM,
        exit_codes.USAGE,
        exit_codes.NOT_FOUND,
        exit_codes.UNREACHABLE,
    }


def test_the_page_shows_the_path_that_is_derived() -> None:
    assert URI in PAGE
