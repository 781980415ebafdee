"""Doctor: each finding says what is and what to do; a job is sent only when asked for; the bucket is left as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.cli import doctor, doctor_bucket
from airflow_provider.cli.doctor_bucket import check_bucket
from airflow_provider.cli.doctor_cluster import _transport
from airflow_provider.cli.exit_codes import OK, PROBLEM, USAGE
from airflow_provider.cli.findings import Finding
from airflow_provider.client.address import ClusterAddress
from airflow_provider.client.credentials import ClusterCredentials
from airflow_provider.core.errors import StorePermissionDenied, WriteConflict
from airflow_provider.core.self_check import MARK, SelfCheckReport, SelfCheckRequest, SelfCheckStep
from airflow_provider.testing.jobs_api import FakeJobsServer
from airflow_provider.testing.jobs_api_parts import FakeJob, Fault
from tests.support.command_line import CommandLine, Said, files
from tests.support.memory_store import CarelessStore, MemoryStore
from tests.unit.cli.conftest import TOKEN


def health(said: Said) -> dict[str, str]:
    """How each check ended."""
    return {one["check"]: one["health"] for one in said.json["findings"]}


def finding(said: Said, check: str) -> dict[str, str]:
    found: dict[str, str] = next(one for one in said.json["findings"] if one["check"] == check)
    return found


@pytest.fixture(autouse=True)
def _no_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps({"conn_type": "aws"}))


def test_all_is_well(cli: CommandLine, server: FakeJobsServer, tmp_path: Path) -> None:
    said = cli("doctor", "--storage-path", tmp_path, "--json")
    assert said.code == OK, said.out
    found = health(said)
    assert finding(said, "authentication")["what"].endswith("over http on this machine only"), "a token on loopback"
    assert found["cluster-inside"] == "skipped"
    rest = {name: how for name, how in found.items() if name != "cluster-inside"}
    assert set(rest) == {
        "authentication",
        "versions",
        "aws-connection",
        "bucket-list",
        "bucket-write",
        "bucket-read",
        "bucket-create-if-absent",
        "bucket-replace-if-match",
        "bucket-delete",
        "runtime-env",
        "ray-connection",
        "dashboard",
        "ray-version",
        "jobs-api",
    }
    assert set(rest.values()) == {"ok"}
    assert files(tmp_path) == {}, "the probe is gone again"
    assert server.num("POST", ".*") == 0, "nothing is sent without --submit-check"


def test_each_finding_that_is_not_well_says_what_to_do(cli: CommandLine, tmp_path: Path) -> None:
    """No connection, no bucket: two problems, each with its remedy, and exit code 1."""
    said = cli("doctor", "--conn-id", "no_such", "--storage-path", tmp_path / "nowhere", "--json")
    assert said.code == PROBLEM
    assert said.json["num_problems"] == 2
    for one in said.json["findings"]:
        assert one["health"] == "ok" or one["change"], one
    assert "mount or create it" in finding(said, "bucket-list")["change"]
    assert "AIRFLOW_CONN_NO_SUCH" in finding(said, "ray-connection")["change"]


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
def test_a_time_that_is_none_is_a_usage_error(cli: CommandLine, server: FakeJobsServer, seconds: str) -> None:
    """Before anything is looked at: with `nan` the check's job would be stopped at once, with `inf` never."""
    said = cli("doctor", "--submit-check", "--timeout", seconds, "--json")
    assert said.code == USAGE
    assert f"--timeout {float(seconds):g} is no time to wait" in said.json["error"]["what"]
    assert server.num("GET", ".*") + server.num("POST", ".*") == 0


def test_a_person_gets_the_remedy_under_the_finding(cli: CommandLine, server: FakeJobsServer) -> None:
    server.add(Fault("answer", status=403, body=f"go away {TOKEN}", content_type="text/plain"))
    said = cli("doctor")
    assert said.code == PROBLEM
    text = " ".join(said.out.split())
    assert "problem the Ray dashboard at" in text
    assert "to do: correct the connection's token" in text
    assert "1 problem" in text
    assert TOKEN not in said.out


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault("refuse"), "no connection"),
        (Fault("answer", status=502), "status 502"),
        (Fault("answer", status=200, body="<html>"), "doesn't answer like Ray's dashboard"),
    ],
)
def test_a_dashboard_that_does_not_answer_is_a_problem(
    cli: CommandLine, server: FakeJobsServer, fault: Fault, words: str
) -> None:
    server.add(fault)
    said = cli("doctor", "--json")
    assert said.code == PROBLEM
    assert words in finding(said, "dashboard")["what"]
    assert "jobs-api" not in health(said)


@pytest.mark.parametrize(
    ("version", "how", "words"),
    [("2.60.0", "ok", ""), ("2.51.3", "ok", ""), ("2.40.0", "warning", "v1"), ("2.99.0rc1", "warning", "submit-check")],
)
def test_rays_release_is_judged(cli: CommandLine, server: FakeJobsServer, version: str, how: str, words: str) -> None:
    server.ray_version = version
    said = cli("doctor", "--json")
    assert said.code == OK
    assert health(said)["ray-version"] == how
    assert words in finding(said, "ray-version")["change"]


def test_an_old_airflow_is_a_problem(cli: CommandLine, server: FakeJobsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "OLDEST_AIRFLOW", (99,))
    said = cli("doctor", "--json")
    assert said.code == PROBLEM
    assert finding(said, "versions")["change"] == "install apache-airflow 99 or newer"


def test_a_token_in_clear_is_a_warning_where_it_leaves_this_machine() -> None:
    token = ClusterCredentials(token="t")
    away = _transport(ClusterAddress.parse("http://ray.example:8265"), token)
    assert (away.health.value, away.what) == ("warning", "the token travels in clear over http to ray.example")
    for host in ("http://127.0.0.1:8265", "http://localhost:8265", "http://[::1]:8265", "https://ray.example"):
        assert _transport(ClusterAddress.parse(host), token).health.value == "ok", host


def test_no_token_is_a_warning(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeJobsServer() as server:
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", json.dumps({"conn_type": "ray", "host": server.url}))
        said = cli("doctor", "--json")
    assert said.code == OK
    assert "RAY_AUTH_MODE=token" in finding(said, "authentication")["change"]


def test_a_connection_to_the_bucket_that_is_broken_is_a_warning(
    cli: CommandLine, server: FakeJobsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow takes it for none, and boto3's own chain for it: perhaps somebody else's keys."""
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", '{"login": "AKIAXXXXXXXXXXXXXXXX", "password": "hunter2hunter2"')
    said = cli("doctor", "--json")
    assert health(said)["aws-connection"] == "warning"
    assert "hunter2" not in said.out
    assert "EnvironmentVariablesBackend (could not be read: JSONDecodeError)" in said.out


@pytest.mark.parametrize("text", ["{", "[]", '{"env_vars": "A=1"}', '{"working_dir": "."}'])
def test_a_runtime_environment_that_is_none_is_a_problem(cli: CommandLine, server: FakeJobsServer, text: str) -> None:
    said = cli("doctor", "--runtime-env", text, "--submit-check", "--json")
    assert said.code == PROBLEM
    assert health(said)["runtime-env"] == "problem"
    assert server.num("POST", ".*") == 0


# --- the bucket --------------------------------------------------------------------------------------------------------


def look_at(store: MemoryStore, monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, Finding]:
    monkeypatch.setattr(doctor_bucket, "open_folder", lambda *_, **__: store)
    known = {"aws_conn_id": None, "is_read_only": False, **options}
    return {one.check: one for one in check_bucket("s3://models/x", **known)}


class RefusingStore(MemoryStore):
    """One verb is not allowed."""

    refused = ""

    def _run(self, verb: str, key: str, effect: Any) -> Any:
        if verb == self.refused:
            raise StorePermissionDenied(f"The object store refused s3:{verb}", known="AccessDenied", change="allow it")
        return super()._run(verb, key, effect)


@pytest.mark.parametrize(
    ("verb", "check", "how"),
    [
        ("list_folder", "bucket-list", "problem"),
        ("create_if_absent", "bucket-write", "problem"),
        ("read", "bucket-read", "problem"),
        ("replace_if_match", "bucket-replace-if-match", "problem"),
        ("delete", "bucket-delete", "warning"),
    ],
)
def test_a_verb_that_is_refused_is_found(monkeypatch: pytest.MonkeyPatch, verb: str, check: str, how: str) -> None:
    """Only `gc` deletes on Airflow's side: without that permission trainings run."""
    store = RefusingStore("s3://models/x")
    store.refused = verb
    found = look_at(store, monkeypatch)
    assert found[check].health.value == how
    assert found[check].change


def test_a_store_without_conditional_writes_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(CarelessStore):
        def replace_if_match(self, key: str, body: bytes, *, etag: str) -> str:
            return self.write(key, body)

    found = look_at(Careless("s3://models/x"), monkeypatch)
    for check in ("bucket-create-if-absent", "bucket-replace-if-match"):
        assert found[check].health.value == "problem"
        assert "two tries at the same moment" in found[check].change
    assert found["bucket-delete"].health.value == "ok"


def test_read_only_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore("s3://models/x")
    verbs: list[str] = []
    store.before_call = lambda verb, *_: verbs.append(verb)
    found = look_at(store, monkeypatch, is_read_only=True)
    assert set(verbs) == {"list_folder"}
    assert found["bucket-write"].health.value == "skipped"


def test_two_doctors_at_once_do_not_trip_over_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore("s3://models/x")

    def interleaved() -> Iterator[tuple[Finding, Finding]]:
        monkeypatch.setattr(doctor_bucket, "open_folder", lambda *_, **__: store)
        looks = [check_bucket("s3://models/x", aws_conn_id=None, is_read_only=False) for _ in range(2)]
        yield from zip(*looks, strict=True)

    assert {one.health.value for pair in interleaved() for one in pair} == {"ok"}
    assert list(store.list("")) == []
    with pytest.raises(WriteConflict):
        store.replace_if_match("x", b"", etag="y")


# --- the job -----------------------------------------------------------------------------------------------------------

GOOD = SelfCheckReport(
    versions={"python": "3.11.9", "ray": "2.60.0", "torch": "2.9.0", "pyarrow": "21.0.0", "pydantic": "2.12.0"},
    missing_seams=(),
    bucket=(SelfCheckStep(action="list (s3:ListBucket)"), SelfCheckStep(action="write (s3:PutObject)")),
)


def ends_with(report: SelfCheckReport | None, *, status: str = "SUCCEEDED", message: str = "") -> Any:
    """What the job's program does."""

    def driver(job: FakeJob) -> None:
        job.status, job.message = status, message or None
        job.log = f"starting\n{MARK}{report.model_dump_json()}\nbye\n" if report else "Traceback\n"

    return driver


def test_a_job_looks_from_inside(cli: CommandLine, server: FakeJobsServer, tmp_path: Path) -> None:
    server.driver = ends_with(GOOD)
    said = cli("doctor", "--submit-check", "--storage-path", tmp_path, "--runtime-env", '{"pip": ["x"]}', "--json")
    assert said.code == OK, said.out
    found = health(said)
    assert {found[name] for name in ("check-job", "cluster-versions", "ray-seams", "cluster-bucket")} == {"ok"}
    assert "cluster-inside" not in found
    (job,) = server.jobs.values()
    assert job.request["runtime_env"]["pip"] == ["x"]
    assert job.request["entrypoint"] == "python -m airflow_provider.runtime.self_check"
    assert TOKEN not in json.dumps(job.request)


def test_what_the_job_finds_is_a_finding(cli: CommandLine, server: FakeJobsServer) -> None:
    report = GOOD.model_copy(
        update={
            "missing_seams": ("the controller's callbacks",),
            "versions": {**GOOD.versions, "pyarrow": None},
            "bucket": (SelfCheckStep(action="write (s3:PutObject)", error="AccessDenied", change=""),),
        }
    )
    server.driver = ends_with(report)
    said = cli("doctor", "--submit-check", "--json")
    assert said.code == PROBLEM
    assert "the controller's callbacks" in finding(said, "ray-seams")["known"]
    assert "lacks pyarrow" in finding(said, "cluster-versions")["what"]
    assert "the nodes' role" in finding(said, "cluster-bucket")["change"]


def test_a_job_without_a_report_is_a_problem(cli: CommandLine, server: FakeJobsServer) -> None:
    server.driver = ends_with(None, status="FAILED", message="runtime_env setup failed: no matching distribution")
    said = cli("doctor", "--submit-check", "--json")
    assert said.code == PROBLEM
    assert "ended FAILED without a report" in finding(said, "check-job")["what"]
    assert finding(said, "check-job")["change"]


def test_a_job_that_does_not_end_is_stopped(cli: CommandLine, server: FakeJobsServer) -> None:
    server.driver = lambda job: setattr(job, "status", "RUNNING")
    said = cli("doctor", "--submit-check", "--timeout", "0", "--json")
    assert said.code == PROBLEM
    assert "did not end within 0 s" in finding(said, "check-job")["what"]
    assert {job.status for job in server.jobs.values()} == {"STOPPED"}


def test_the_request_travels_in_the_package(server: FakeJobsServer) -> None:
    import io
    import zipfile

    from airflow_provider.cli.doctor_job import CheckRequest

    package = CheckRequest("s3://models/x", is_read_only=True).package()
    with zipfile.ZipFile(io.BytesIO(package.content)) as archive:
        asked = SelfCheckRequest.model_validate_json(archive.read("airflow_provider/self_check.json"))
        assert "airflow_provider/runtime/self_check.py" in archive.namelist()
    assert (asked.storage_path, asked.is_read_only) == ("s3://models/x", True)
