"""Each answer is told apart: Ray's word, a proxy's page, a torn body, a refusal. Fuzzed for untyped errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.client import AlreadyExists, JobRequest, JobStatus, SubmitAccepted, replies, requests
from airflow_provider.client.replies import Reply
from airflow_provider.core.errors import (
    ClusterAuthFailed,
    ClusterRefused,
    ClusterUnreachable,
    InvalidConfig,
    NotARayDashboard,
    RayTrainError,
)

PAGE = b"<html><body>502 Bad Gateway</body></html>"
PARSERS: list[Callable[[Reply], object]] = [
    replies.parse_version,
    lambda reply: replies.parse_job(reply, asked="a1"),
    replies.parse_jobs,
    replies.parse_submit,
    replies.parse_stop,
    replies.parse_has_package,
    replies.parse_no_log,
    lambda reply: replies.parse_upload(reply, size=10),
]
JOB = {
    "type": "SUBMISSION",
    "job_id": "02000000",
    "submission_id": "a1",
    "driver_info": {"id": "02000000", "node_ip_address": "10.0.0.5", "pid": "4711"},
    "status": "FAILED",
    "entrypoint": "python x.py",
    "message": "m",
    "error_type": "JOB_ENTRYPOINT_COMMAND_ERROR",
    "start_time": 1795910400000,
    "end_time": 1795914000000,
    "metadata": {"k": "v"},
    "runtime_env": {"env_vars": {"SECRET": "hunter2"}},
    "driver_node_id": "ab",
    "driver_exit_code": 137,
    "field_of_a_later_ray": [1],
}


def ray(status: int, body: object) -> Reply:
    """An answer as Ray sends it."""
    if isinstance(body, str):
        return Reply(status, "text/plain; charset=utf-8", body.encode(), url="http://head:8265")
    return Reply(status, "application/json", json.dumps(body).encode(), url="http://head:8265")


def test_job_is_read_with_aware_times_and_without_its_environment() -> None:
    """Ray returns environment variables in clear; our value must not hold them."""
    job = replies.parse_job(ray(200, JOB), asked="a1")
    assert job is not None
    assert (job.status, job.driver_exit_code, job.ray_job_id) == (JobStatus.FAILED, 137, "02000000")
    assert job.status.is_terminal
    assert job.start_time == datetime.fromtimestamp(1795910400, tz=timezone.utc)
    assert "hunter2" not in repr(job)
    assert "hunter2" not in str(vars(job))


def test_all_jobs_are_read_and_drivers_that_nobody_submitted_are_left_out() -> None:
    driver = {**JOB, "type": "DRIVER", "submission_id": None}
    found = replies.parse_jobs(ray(200, [JOB, driver, {**JOB, "submission_id": "a2", "status": "RUNNING"}]))
    assert [(job.submission_id, job.status) for job in found] == [("a1", JobStatus.FAILED), ("a2", JobStatus.RUNNING)]
    assert "hunter2" not in str([vars(job) for job in found])
    assert replies.parse_jobs(ray(200, [])) == []
    for wrong in ({"jobs": []}, [{**JOB, "status": "ASLEEP"}]):
        with pytest.raises(NotARayDashboard):
            replies.parse_jobs(ray(200, wrong))


def test_what_a_gateway_echoes_of_our_token_is_not_kept() -> None:
    """The cluster's session name reaches claims and logs."""

    def echo(body: dict[str, object]) -> Reply:
        echoed = json.dumps(body).replace("ECHO", "s3cr3t").encode()
        return Reply(200, "application/json", echoed, redact=lambda text: text.replace("s3cr3t", "***"))

    version = replies.parse_version(
        echo({"ray_version": "2.60 ECHO", "session_name": "session ECHO", "version": "ECHO"})
    )
    job = replies.parse_job(
        echo({**JOB, "message": "ECHO", "error_type": "ECHO", "entrypoint": "run ECHO"}), asked="a1"
    )
    assert job is not None
    assert "s3cr3t" not in f"{version} {vars(version)} {job} {vars(job)}"
    assert (version.session_name, job.message) == ("session ***", "***")


def test_only_rays_own_404_means_unknown() -> None:
    """A proxy's 404 taken for "job gone" would declare a healthy job lost."""
    assert replies.parse_job(ray(404, "Job a1 does not exist"), asked="a1") is None
    for foreign in (Reply(404, "text/html", PAGE), ray(404, "404: Not Found"), ray(404, "default backend - 404")):
        with pytest.raises(NotARayDashboard):
            replies.parse_job(foreign, asked="a1")
    labelled = Reply(404, "text/html", b"Job a1 does not exist")
    assert replies.parse_job(labelled, asked="a1") is None, "a gateway may label Ray's text as HTML"
    assert replies.parse_has_package(ray(404, "Package gcs://x.zip does not exist")) is False
    assert replies.parse_has_package(Reply(200, "application/octet-stream", b"")) is True
    assert replies.parse_stop(ray(404, "Job a1 does not exist")) is False


def test_an_answer_about_another_job_ends_nobodys_wait() -> None:
    """It came late on a kept connection, or a gateway kept it."""
    other = replies.parse_job(ray(200, JOB), asked="02000000")
    assert other is not None, "Ray finds a job by either of its ids"
    with pytest.raises(NotARayDashboard, match=r"asked about job b2.*another one.*it described a1"):
        replies.parse_job(ray(200, JOB), asked="b2")


def test_page_with_200_is_not_ray() -> None:
    """A login page says 200 and means nothing."""
    for parse in PARSERS:
        with pytest.raises(NotARayDashboard):
            parse(Reply(200, "text/html", PAGE))
        with pytest.raises(NotARayDashboard):
            parse(Reply(302, "text/plain", b"", location="https://login.example"))


def test_torn_json_is_unreachable_and_not_a_verdict() -> None:
    """The connection broke inside an answer: it can be asked again."""
    with pytest.raises(ClusterUnreachable):
        replies.parse_job(Reply(200, "application/json", json.dumps(JOB).encode()[:-20]), asked="a1")
    with pytest.raises(ClusterUnreachable):
        replies.parse_jobs(Reply(200, "application/json", json.dumps([JOB]).encode()[:-20]))
    with pytest.raises(NotARayDashboard):
        replies.parse_job(Reply(200, "text/plain", b"It works!"), asked="a1")


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 429])
def test_server_failures_are_unreachable(status: int) -> None:
    """With a page or with a traceback; the page's text isn't repeated."""
    for parse in PARSERS:
        with pytest.raises(ClusterUnreachable) as error:
            parse(Reply(status, "text/html", PAGE))
        assert "Bad Gateway" not in str(error.value)


@pytest.mark.parametrize("status", [401, 403])
def test_refused_identity_names_the_header(status: int) -> None:
    """The person has to know which header carried the token, and not the token."""
    reply = Reply(
        status,
        "text/plain",
        b"no: s3cr3t",
        header_name="X-Ray-Authorization",
        has_token=True,
        redact=lambda text: text.replace("s3cr3t", "***"),
    )
    for parse in PARSERS:
        with pytest.raises(ClusterAuthFailed, match="X-Ray-Authorization") as error:
            parse(reply)
        assert "s3cr3t" not in str(error.value)


@pytest.mark.parametrize("status", [400, 409, 500])
def test_already_exists_is_a_value_in_any_status(status: int) -> None:
    """Older dashboards wrap the agent's 400 into a 500 with a traceback (C23)."""
    text = "Traceback\nRuntimeError: Request failed with status code 400: ValueError: Job with submission_id a already exists."
    assert replies.parse_submit(ray(status, text)) == AlreadyExists(status)


def test_refusal_shows_the_last_line_of_the_traceback() -> None:
    """The exception is there; the frames above are Ray's own."""
    with pytest.raises(ClusterRefused, match="unexpected keyword argument 'x'") as error:
        replies.parse_submit(
            ray(400, "Traceback (most recent call last):\n  File y\nTypeError: unexpected keyword argument 'x'\n")
        )
    assert "File y" not in str(error.value)
    assert replies.parse_submit(ray(200, {"job_id": "a", "submission_id": "a"})) == SubmitAccepted("a")


@pytest.mark.parametrize(
    "reply",
    [
        ray(413, "Maximum request body size 104857600 exceeded, actual body size 104857601"),
        ray(500, "aiohttp.web_exceptions.HTTPRequestEntityTooLarge: Request Entity Too Large"),
        Reply(413, "text/html", b"<html><h1>413 Request Entity Too Large</h1></html>"),
    ],
)
def test_too_large_package_is_configuration(reply: Reply) -> None:
    """Zero retries help; the message says size, limit and remedy (C31)."""
    with pytest.raises(InvalidConfig, match=r"123,456,789 bytes.*100|123,456,789 bytes.*104,857,600") as error:
        replies.parse_upload(reply, size=123_456_789)
    assert "excludes" in str(error.value)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*JOB, "stopped", "logs", "x"]), inner),
    max_leaves=12,
)
_BODIES = st.binary(max_size=200) | _VALUES.map(lambda value: json.dumps(value).encode()) | st.just(PAGE)
_JOBS = st.dictionaries(st.sampled_from(list(JOB)), _VALUES).map(lambda changed: json.dumps(JOB | changed).encode())


@given(
    status=st.integers(0, 999),
    content_type=st.sampled_from(["", "application/json", "text/html", "text/plain"]) | st.text(max_size=10),
    body=_BODIES | _JOBS,
)
def test_whatever_comes_leads_to_a_value_or_a_typed_error(status: int, content_type: str, body: bytes) -> None:
    """An untyped error in a trigger would kill it; a job would run unwatched."""
    for parse in PARSERS:
        try:
            parse(Reply(status, content_type, body))
        except RayTrainError as error:
            told = str(error)
        else:
            told = ""
        assert len(told) < 2000


def test_requests_quote_ids_and_send_only_what_is_set() -> None:
    """Ray refuses unknown fields, and an id with a slash leaves a job pending for ever."""
    assert requests.get_job("a/b").path == "/api/jobs/a%2Fb"
    request = requests.submit(JobRequest("a1", "python x.py", {"k": "v"}, entrypoint_num_cpus=0))
    assert request.content is not None
    assert json.loads(request.content) == {
        "submission_id": "a1",
        "entrypoint": "python x.py",
        "metadata": {"k": "v"},
        "runtime_env": {},
        "entrypoint_num_cpus": 0,
    }
    for bad in ("a/b", "", "x" * 201, "a b", "ä"):
        with pytest.raises(InvalidConfig):
            JobRequest(bad, "python x.py")
    with pytest.raises(InvalidConfig):
        requests.submit(JobRequest("a", "x", runtime_env={"a": object()}))
    with pytest.raises(InvalidConfig):
        requests.has_package("s3://x/y.zip")
