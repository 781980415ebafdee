"""The process edge: three lines for an error and its exit code, never a traceback, never a secret."""

from __future__ import annotations

import io
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.cli.answer import Answer, run
from airflow_provider.cli.errors import AirflowUnreadable, NotFound
from airflow_provider.cli.exit_codes import NOT_FOUND, OK, PROBLEM, UNREACHABLE, USAGE, exit_code
from airflow_provider.core import layout
from airflow_provider.core.errors import (
    BucketNotFound,
    ClusterAuthFailed,
    ClusterTimeout,
    InvalidConfig,
    NotARayDashboard,
    NoUsableCheckpoint,
    RayTrainError,
    RecordUnreadable,
    StorePermissionDenied,
    StoreThrottled,
)
from airflow_provider.testing.jobs_api import FakeJobsServer
from airflow_provider.testing.jobs_api_parts import Fault
from tests.support.command_line import CommandLine, on_disk
from tests.support.training_try import Bench
from tests.unit.cli.conftest import TOKEN

CODES: list[tuple[type[RayTrainError], int]] = [
    (NotFound, NOT_FOUND),
    (BucketNotFound, NOT_FOUND),
    (InvalidConfig, USAGE),
    (ClusterTimeout, UNREACHABLE),
    (ClusterAuthFailed, UNREACHABLE),
    (NotARayDashboard, UNREACHABLE),
    (StorePermissionDenied, UNREACHABLE),
    (StoreThrottled, UNREACHABLE),
    (AirflowUnreadable, UNREACHABLE),
    (NoUsableCheckpoint, PROBLEM),
    (RecordUnreadable, PROBLEM),
]


def args(*, is_json: bool = False, is_verbose: bool = False) -> Namespace:
    return Namespace(output=is_json, verbose=is_verbose)


def raising(error: BaseException) -> Any:
    def answer(_: Namespace) -> Answer:
        raise error

    return answer


@pytest.mark.parametrize(("kind", "code"), CODES)
def test_an_error_has_its_exit_code(kind: type[RayTrainError], code: int) -> None:
    assert exit_code(kind("What")) == code
    assert run(raising(kind("What")), args()) == code


def test_an_error_is_three_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    error = BucketNotFound("The bucket x does not exist", known="the store said 404", change="create it")
    assert run(raising(error), args()) == NOT_FOUND
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "error: The bucket x does not exist.",
        "known: the store said 404.",
        "to do: create it.",
    ]


def test_with_json_the_error_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    run(raising(NotFound("Nothing there", change="look elsewhere")), args(is_json=True))
    said = json.loads(capsys.readouterr().out)
    assert said["exit_code"] == NOT_FOUND
    assert said["error"] == {"type": "NotFound", "what": "Nothing there", "known": "", "change": "look elsewhere"}


def test_an_unknown_error_is_no_traceback_and_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    error = ValueError("postgresql://airflow:hunter2@db/airflow token=abcdefgh12345678")
    assert run(raising(error), args()) == PROBLEM
    err = capsys.readouterr().err
    assert "ValueError" in err
    assert "Traceback" not in err
    assert "hunter2" not in err
    assert "abcdefgh12345678" not in err
    with pytest.raises(ValueError, match="hunter2"):
        run(raising(error), args(is_verbose=True))


def test_names_of_others_are_not_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    run(raising(NotFound("There is no [red]run[/red] :smile:")), args())
    assert "[red]run[/red] :smile:" in capsys.readouterr().err


def test_what_others_wrote_gives_a_terminal_no_orders(cli: CommandLine, folder: Path) -> None:
    """Exceptions of libraries are full of colours; a title or a bell is no better."""
    bench = Bench()
    bench.own(1)
    bench.claim(1)
    bench.end("failed")
    path = on_disk(bench, folder)
    outcome = path / layout.outcome(1, 1)
    failure = {"kind": "user", "reason": "\x1b[31mred\x1b[0m boom\x1b]0;title\x07\x9b2J"}
    outcome.write_text(json.dumps(json.loads(outcome.read_text()) | {"failure": failure}))
    said = cli("lineage", path)
    assert "user: red boom]0;title2J" in said.out
    assert not set("\x1b\x07\x9b") & set(said.out)
    assert "\x1b" not in cli("lineage", "/nowhere/\x1b[31mred").err


def test_a_place_that_writes_ascii_only_gets_the_rest_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cron jobs run so; a name with an umlaut must not hide the answer."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert run(lambda _: Answer({}, lambda console: console.print("träume: 1 try")), args()) == OK
    assert written.getvalue() == b"tr\\xe4ume: 1 try\n"


@pytest.mark.parametrize("columns", ["0", "1", "12"])
def test_a_terminal_that_calls_itself_too_narrow_loses_nothing(
    cli: CommandLine, bench: Bench, folder: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    path = on_disk(bench, folder)
    monkeypatch.setenv("COLUMNS", columns)
    said = cli("lineage", path)
    assert "1 attempt, 3 checkpoints" in said.out
    assert "checkpoint_c  committed" in said.out


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    assert run(raising(BrokenPipeError()), args()) == OK


def test_no_colours_where_there_is_no_terminal(cli: CommandLine, bench: Bench, folder: Path) -> None:
    said = cli("lineage", on_disk(bench, folder))
    assert said.code == OK
    assert "\x1b" not in said.out
    assert max(map(len, said.out.splitlines()[1:])) <= 80, "but for the path, which stays in one piece"


def test_a_missing_connection_says_where_it_was_looked_for(cli: CommandLine, bench: Bench, folder: Path) -> None:
    said = cli("restore-plan", on_disk(bench, folder), "--conn-id", "no_such")
    assert said.code == NOT_FOUND
    assert "Airflow has no connection 'no_such'" in said.err
    assert "EnvironmentVariablesBackend" in said.err
    assert "AIRFLOW_CONN_NO_SUCH" in said.err


def test_a_connection_of_the_metadata_database_is_found(
    cli: CommandLine, bench: Bench, folder: Path, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is neither task nor server would not look there."""
    monkeypatch.delenv("_AIRFLOW_PROCESS_CONTEXT")
    from airflow.models.connection import Connection

    with FakeJobsServer(token=TOKEN) as server:
        host, port = server.url.removeprefix("http://").split(":")
        database.add(Connection(conn_id="of_db", conn_type="ray", host=host, port=int(port), password=TOKEN))
        database.flush()
        said = cli("restore-plan", on_disk(bench, folder), "--conn-id", "of_db", "--json")
        assert server.requests, said.err
    assert said.code == OK, said.err


def test_no_secret_is_printed_by_any_command(
    cli: CommandLine, bench: Bench, folder: Path, server: FakeJobsServer
) -> None:
    root = on_disk(bench, folder)
    server.add(Fault("answer", path=r".*/api/version", status=403, body=f"no access with {TOKEN}"))
    shown = [
        cli("doctor", "--storage-path", folder.parent),
        cli("doctor", "--json"),
        cli("restore-plan", root),
        cli("lineage", root, "--json"),
        cli("gc", folder.parent, "--all"),
    ]
    assert not [said for said in shown if TOKEN in said.out + said.err]
