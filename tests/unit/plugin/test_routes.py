"""The page's routes as Airflow's API server serves them: who gets what, and what never happens."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import event

from airflow_provider.core.errors import StoreUnreachable
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.lineage import lineage_xcom
from airflow_provider.plugin.app import create_app
from airflow_provider.plugin.snapshots import Snapshots
from airflow_provider.plugin.view.facts import Recorded, Seen
from tests.support.lineage_page import JOB, KEY, URI, RightsByDag, Tables, name, seen

QUERY: dict[str, Any] = {"dag_id": KEY.dag_id, "run_id": KEY.run_id, "task_id": KEY.task_id}
PAGES = ["/lineage", "/api/lineage", "/run", "/experiments"]


class Bucket:
    """Stands for the reader: gives what a test says, and notes what it was asked for."""

    def __init__(self) -> None:
        self.answer: Seen | Exception = seen()
        self.asked: list[Recorded] = []
        self.hold = threading.Event()
        self.hold.set()
        self.looked: Callable[[], None] = lambda: None

    def open(self, recorded: Recorded) -> Any:
        self.asked.append(recorded)
        return self

    def look(self, key: TaskInstanceKey) -> Seen:
        self.looked()
        self.hold.wait(20)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def client(auth: RightsByDag, bucket: Bucket) -> Iterator[TestClient]:
    """The app below a prefix, as Airflow mounts it."""
    snapshots = Snapshots(bucket.open, wait_s=0.3)
    outer = FastAPI()
    outer.mount("/ray-train", create_app(snapshots))
    yield TestClient(outer, base_url="http://airflow/ray-train", follow_redirects=False)
    bucket.hold.set()
    snapshots.close()


@pytest.fixture
def token(auth: RightsByDag) -> Callable[[str], str]:
    def token(role: str = "reader of d") -> str:
        return auth.generate_jwt(SimpleAuthManagerUser(username="ann", role=role))

    return token


@pytest.fixture
def reader(client: TestClient, tables: Tables, token: Callable[[str], str]) -> TestClient:
    """Logged in as the browser is: by Airflow's cookie."""
    tables.add_task()
    tables.keep()
    client.cookies.set("_token", token("reader of d"))
    return client


# --- rights ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
def test_without_a_token_nothing_is_said(client: TestClient, tables: Tables, path: str) -> None:
    tables.add_task()
    tables.keep()
    for query in (QUERY, {}):
        answer = client.get(path, params=query)
        assert answer.status_code == 401
        assert URI not in answer.text


@pytest.mark.parametrize("path", PAGES)
def test_a_wrong_token_is_refused(reader: TestClient, bucket: Bucket, path: str) -> None:
    reader.cookies.clear()
    answer = reader.get(path, params=QUERY, headers={"Authorization": "Bearer eyJhbGciOiJub25lIn0.e30."})
    assert answer.status_code == 403
    assert bucket.asked == []


@pytest.mark.parametrize("path", ["/lineage", "/api/lineage", "/run"])
@pytest.mark.parametrize("role", ["reader of e", "reader of d, no xcom", "reader of d, no task_instance", "nobody"])
def test_without_the_right_to_the_dag_and_its_xcoms_nothing_is_said(
    reader: TestClient, token: Callable[[str], str], bucket: Bucket, path: str, role: str
) -> None:
    """The lineage is what the XComs hold."""
    reader.cookies.set("_token", token(role))
    answer = reader.get(path, params=QUERY)
    assert answer.status_code == 403
    assert URI not in answer.text
    assert bucket.asked == []


def test_a_bearer_token_does_as_well(reader: TestClient, token: Callable[[str], str]) -> None:
    reader.cookies.clear()
    headers = {"Authorization": f"Bearer {token('reader of d')}"}
    assert reader.get("/api/lineage", params=QUERY, headers=headers).status_code == 200


def test_the_checked_dag_is_the_shown_one(reader: TestClient, tables: Tables, token: Callable[[str], str]) -> None:
    """Two ids in one address must not be read by two rules."""
    other = TaskInstanceKey("e", "r", "train")
    tables.add_task(other)
    tables.keep(other, JOB | {"experiment": "s3://models/secret"})
    for query in (
        [("dag_id", "e"), ("dag_id", "d"), ("run_id", "r"), ("task_id", "train")],
        [("dag_id", "d"), ("dag_id", "e"), ("run_id", "r"), ("task_id", "train")],
        [("dag_id", "~"), ("run_id", "r"), ("task_id", "train")],
    ):
        answer = reader.get("/api/lineage", params=query)
        assert answer.status_code in (403, 404)
        assert "secret" not in answer.text


def test_the_list_has_the_readable_dags_only(reader: TestClient, tables: Tables, token: Callable[[str], str]) -> None:
    other = TaskInstanceKey("e", "r", "hidden-task")
    tables.add_task(other)
    tables.keep(other, JOB | {"experiment": "s3://models/secret"})
    text = reader.get("/experiments").text
    assert URI in text
    assert "hidden-task" not in text
    reader.cookies.set("_token", token("reader of e, reader of d"))
    assert "hidden-task" in reader.get("/experiments").text


@pytest.mark.parametrize("lacking", ["no xcom", "no task_instance"])
def test_the_list_tells_nothing_that_the_page_would_refuse(
    reader: TestClient, token: Callable[[str], str], lacking: str
) -> None:
    """The right to read a DAG alone is not the right to its task instances and their XComs."""
    reader.cookies.set("_token", token(f"reader of d, {lacking}"))
    text = reader.get("/experiments").text
    assert URI not in text
    assert KEY.task_id + "</a>" not in text


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
@pytest.mark.parametrize("path", PAGES)
def test_nothing_can_be_changed(reader: TestClient, path: str, method: str) -> None:
    assert getattr(reader, method)(path, params=QUERY).status_code == 405


# --- what is shown -------------------------------------------------------------------------------------------------------


def test_the_page_shows_attempts_checkpoints_failures_and_goodput(reader: TestClient) -> None:
    answer = reader.get("/lineage", params=QUERY | {"checkpoint": f"g000001/{name(2, 1)}"})
    assert answer.status_code == 200
    text = answer.text
    for part in (
        "g1/a1",
        "g1/a2",
        "node 3 died at step 1200",
        "quarantined",
        "restored from",
        "Goodput",
        "Log of try 2",
    ):
        assert part in text, part
    assert "its files are not those that were recorded" in text
    assert f"warm_start=&#34;{URI}/g000001/{name(2, 1)}&#34;" in text
    assert 'href="http://s3:8333' not in text, "no XCom says where the bucket's page is"


def test_tries_that_airflow_has_archived_are_there(reader: TestClient, tables: Tables) -> None:
    tables.add_earlier_try()
    text = reader.get("/lineage", params=QUERY).text
    assert "try_number=1" in text
    assert text.index("Try 1") < text.index("Try 2")
    other = TaskInstanceKey("d", KEY.run_id, "train", 3)
    assert "mapped" not in text
    tables.add_task(other, state="running", try_number=1)
    tables.keep(other)
    assert "/mapped/3?try_number=1" in reader.get("/lineage", params=QUERY | {"map_index": "3"}).text


def test_links_to_ray_and_the_bucket_are_those_that_the_operator_pushed(reader: TestClient, tables: Tables) -> None:
    tables.push("ray_job_url", "https://gw.example/ray/#/jobs/af-1")
    tables.push("experiment_url", json.dumps("http://s3:8333/models/x/"))
    text = reader.get("/lineage", params=QUERY | {"checkpoint": f"g000001/{name(2, 1)}"}).text
    assert 'href="https://gw.example/ray/#/jobs/af-1"' in text
    assert f'href="http://s3:8333/models/x/g000001/{name(2, 1)}/"' in text


def test_an_xcom_of_another_class_is_not_made_an_object(reader: TestClient, tables: Tables) -> None:
    odd = {"__classname__": "airflow_provider.no.such.Class", "__version__": 1, "__data__": {}}
    tables.push("ray_job_url", odd)
    assert reader.get("/lineage", params=QUERY).status_code == 200


def test_the_api_says_the_same(reader: TestClient) -> None:
    found = reader.get("/api/lineage", params=QUERY | {"state": "quarantined"}).json()
    assert [a["ref"] for a in found["attempts"]] == ["g1/a2", "g1/a1"]
    assert [c["name"] for c in found["checkpoints"]] == [f"g000001/{name(1, 3)}"]
    assert [f["kind"] for f in found["failures"]] == ["infrastructure", "infrastructure"]
    assert found["goodput"]["sentence"].startswith("goodput")
    assert found["problem"] is None


def test_what_has_not_changed_is_not_sent_again(reader: TestClient, bucket: Bucket) -> None:
    for path in ("/lineage", "/api/lineage", "/experiments"):
        first = reader.get(path, params=QUERY)
        again = reader.get(path, params=QUERY, headers={"If-None-Match": f'"x", {first.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b""), path
        assert again.headers["etag"] == first.headers["etag"]
        assert "no-cache" in again.headers["cache-control"]
        assert "private" in again.headers["cache-control"]


def test_a_single_training_of_a_dag_run_is_shown_at_once(reader: TestClient, tables: Tables) -> None:
    answer = reader.get("/run", params=QUERY)
    assert answer.status_code == 303
    assert reader.get(f"/{answer.headers['location']}").status_code == 200
    second = TaskInstanceKey(KEY.dag_id, KEY.run_id, "sweep", 7)
    tables.add_task(second)
    tables.keep(second)
    answer = reader.get("/run", params=QUERY)
    assert answer.status_code == 200
    links = re.findall(r'href="(lineage\?[^"]+)"', answer.text)
    assert len(links) == 2
    assert reader.get("/" + next(link for link in links if "sweep" in link).replace("&amp;", "&")).status_code == 200


def test_an_unmapped_task_has_the_address_that_airflow_makes_for_it(reader: TestClient) -> None:
    assert reader.get("/lineage", params=QUERY | {"map_index": "{MAP_INDEX}"}).status_code == 200
    assert reader.get("/lineage", params=QUERY | {"map_index": "3"}).status_code == 404
    for odd in ("x", "0000000003", "99999999999", "-2"):
        assert reader.get("/lineage", params=QUERY | {"map_index": odd}).status_code == 422


@pytest.mark.parametrize("part", ["dag_id", "run_id", "task_id"])
def test_a_nul_is_the_readers_fault(reader: TestClient, part: str) -> None:
    """PostgreSQL would answer with an error of its own."""
    assert reader.get("/lineage", params=QUERY | {part: "d\0"}).status_code == 422


def test_a_page_does_not_repeat_what_is_no_choice(reader: TestClient) -> None:
    """Each link repeats the choices: a long one would make a page of a hundred times its length."""
    plain = len(reader.get("/lineage", params=QUERY).content)
    for choice in ("metric", "checkpoint", "attempt"):
        assert len(reader.get("/lineage", params=QUERY | {choice: "x" * 20_000}).content) < plain + 1_000


def test_a_task_without_an_experiment_says_so(reader: TestClient, tables: Tables, bucket: Bucket) -> None:
    other = TaskInstanceKey("d", KEY.run_id, "other")
    tables.add_task(other)
    answer = reader.get("/lineage", params=QUERY | {"task_id": "other"})
    assert answer.status_code == 200
    assert "has recorded no Ray Train experiment" in answer.text
    assert bucket.asked == []


# --- what never happens --------------------------------------------------------------------------------------------------


def test_the_bucket_is_asked_for_what_airflow_recorded_whatever_the_browser_says(
    reader: TestClient, bucket: Bucket
) -> None:
    evil = {"experiment": "s3://other/x", "uri": "s3://other/x", "aws_conn_id": "admin", "checkpoint": "../../other"}
    answer = reader.get("/lineage", params=QUERY | evil)
    assert answer.status_code == 200
    assert [(r.experiment, r.aws_conn_id) for r in bucket.asked] == [(URI, "aws_default")]
    assert "no checkpoint of that name" in answer.text


@pytest.mark.parametrize("path", [*PAGES, "/static/lineage.js", "/nothing-here", "/api/nothing"])
def test_every_answer_has_the_policy(reader: TestClient, path: str) -> None:
    for one in (reader.get(path, params=QUERY), reader.get(path), reader.post(path)):
        policy = one.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'self'" in policy
        assert "unsafe" not in policy
        assert one.headers["x-content-type-options"] == "nosniff"


def test_pages_hold_nothing_that_the_policy_forbids(reader: TestClient) -> None:
    """Inline scripts and styles would silently not work."""
    for path in ("/lineage", "/experiments"):
        text = reader.get(path, params=QUERY | {"checkpoint": f"g000001/{name(2, 1)}"}).text
        assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
        assert re.findall(r"\s(?:style|on\w+)=", text) == []


def test_a_slow_bucket_gives_a_clear_page_soon_and_the_reading_goes_on(reader: TestClient, bucket: Bucket) -> None:
    bucket.hold.clear()
    answer = reader.get("/lineage", params=QUERY)
    assert answer.status_code == 503
    assert "The bucket has not answered yet" in answer.text
    bucket.hold.set()
    assert reader.get("/lineage", params=QUERY).status_code == 200
    assert len(bucket.asked) == 1


def test_who_waits_for_a_bucket_holds_no_database_connection(
    reader: TestClient, bucket: Bucket, tables: Tables
) -> None:
    """A pool has some fifteen connections: as many readers of one slow bucket would stop Airflow's whole API."""
    taken = [0]
    event.listen(tables.engine, "checkout", lambda *_: taken.__setitem__(0, taken[0] + 1))
    event.listen(tables.engine, "checkin", lambda *_: taken.__setitem__(0, taken[0] - 1))
    while_reading: list[int] = []
    bucket.looked = lambda: while_reading.append(taken[0])
    assert reader.get("/lineage", params=QUERY).status_code == 200
    assert reader.get("/api/lineage", params=QUERY | {"map_index": "-1"}).status_code == 200
    assert while_reading == [0]


def test_a_missing_bucket_gives_its_error_without_secrets(reader: TestClient, bucket: Bucket) -> None:
    bucket.answer = StoreUnreachable(
        "No answer from https://k:s3cr3t@s3/?X-Amz-Signature=abcdef", known="x", change="<b>y"
    )
    answer = reader.get("/lineage", params=QUERY)
    assert answer.status_code == 503
    assert "No answer from" in answer.text
    assert "s3cr3t" not in answer.text
    assert "abcdef" not in answer.text
    assert "<b>" not in answer.text


def test_an_error_of_a_library_is_named_without_its_words(reader: TestClient, bucket: Bucket) -> None:
    bucket.answer = ValueError("password=hunter2")
    answer = reader.get("/api/lineage", params=QUERY)
    assert answer.status_code == 503
    assert "ValueError" in answer.text
    assert "hunter2" not in answer.text


@pytest.mark.parametrize("at", ["2026-11-29T00:00:00", "0001-01-01T00:00:00+05:00"])
def test_an_xcom_that_somebody_made_up_gives_a_clear_page(
    reader: TestClient, bucket: Bucket, tables: Tables, at: str
) -> None:
    """XComs can be written through Airflow's API; ours have times of our age, with a zone."""
    forged = lineage_xcom(seen().lineage)
    forged["attempts"][-1]["claimed_at"] = at
    tables.push("checkpoint_lineage", forged)
    bucket.answer = StoreUnreachable("No answer")
    for path in ("/lineage", "/api/lineage"):
        answer = reader.get(path, params=QUERY)
        assert answer.status_code == 503
        assert "No answer" in answer.text or "be shown" in answer.text


def test_without_the_bucket_the_xcoms_lineage_is_shown(reader: TestClient, bucket: Bucket, tables: Tables) -> None:
    tables.push("checkpoint_lineage", lineage_xcom(seen().lineage))
    bucket.answer = StoreUnreachable("No answer")
    answer = reader.get("/lineage", params=QUERY)
    assert answer.status_code == 200
    assert "No answer" in answer.text
    assert "its XCom holds the lineage" in answer.text
    assert "checkpoint_002" in answer.text


def test_a_lineage_of_another_experiment_is_not_shown_instead(
    reader: TestClient, bucket: Bucket, tables: Tables
) -> None:
    tables.push("checkpoint_lineage", lineage_xcom(seen().lineage) | {"experiment": "s3://models/another"})
    bucket.answer = StoreUnreachable("No answer")
    assert reader.get("/lineage", params=QUERY).status_code == 503


def test_a_damaged_xcom_is_no_error(reader: TestClient, bucket: Bucket, tables: Tables) -> None:
    tables.push("checkpoint_lineage", {"experiment": URI, "attempts": "none"})
    tables.push("experiment_url", ["x"])
    tables.push("ray_job_url", "javascript:alert(1)")
    bucket.answer = StoreUnreachable("No answer")
    assert reader.get("/lineage", params=QUERY).status_code == 503


def test_an_address_that_could_run_a_script_is_no_link(reader: TestClient, tables: Tables) -> None:
    tables.push("ray_job_url", "javascript:alert(1)")
    tables.push("experiment_url", "data:text/html,x")
    text = reader.get("/lineage", params=QUERY).text
    assert "javascript:" not in text
    assert "data:text" not in text


def test_static_files_are_named_by_their_content(client: TestClient, tables: Tables) -> None:
    page = client.get("/lineage", params=QUERY).text  # the page that asks for a login has them too
    (script,) = re.findall(r'src="(static/[^"]+)"', page)
    answer = client.get(f"/{script}")
    assert answer.status_code == 200
    assert "immutable" in answer.headers["cache-control"]
    assert "immutable" not in client.get("/static/lineage.js?v=other").headers["cache-control"]
    for path in ("..%2F__init__.py", "lineage.html", "__init__.py"):
        assert client.get(f"/static/{path}").status_code == 404


def test_the_record_of_the_xcom_counts_where_the_state_store_has_a_reference(
    client: TestClient, tables: Tables, bucket: Bucket, token: Callable[[str], str]
) -> None:
    tables.add_task()
    tables.keep(KEY, {"__external_ref__": "s3://x"})
    tables.push("ray_train_job", JOB | {"experiment": "s3://models/by-xcom"})
    client.cookies.set("_token", token("reader of d"))
    client.get("/lineage", params=QUERY)
    assert [r.experiment for r in bucket.asked] == ["s3://models/by-xcom"]


def test_json_is_strict(reader: TestClient, bucket: Bucket) -> None:
    def no_constant(text: str) -> None:
        raise AssertionError(text)

    json.loads(reader.get("/api/lineage", params=QUERY).text, parse_constant=no_constant)
