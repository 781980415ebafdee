"""The page's routes as Airflow's API server serves them: who gets what, and what never happens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event

from airflow_provider.core.errors import StoreUnreachable
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.lineage import lineage_xcom
from airflow_provider.plugin import app
from tests.support.lineage_page import JOB, KEY, URI, Tables, name, seen
from tests.unit.plugin.conftest import Bucket

QUERY: dict[str, Any] = {"dag_id": KEY.dag_id, "run_id": KEY.run_id, "task_id": KEY.task_id}
PAGES = ["/lineage", "/api/lineage", "/run", "/experiments"]


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


@pytest.fixture
def renders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pages and JSON documents that were made, by what made them."""
    made: list[str] = []

    def counted(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any) -> Any:
            made.append(name)
            return make(*args)

        return count

    for function in ("build_page", "page_as_json"):
        monkeypatch.setattr(app, function, counted(function, getattr(app, function)))
    monkeypatch.setattr(app.rendering, "lineage_page", counted("lineage_page", app.rendering.lineage_page))
    return made


def test_an_unchanged_poll_makes_no_page(
    reader: TestClient, bucket: Bucket, tables: Tables, renders: list[str]
) -> None:
    for path, made in (("/lineage", ["build_page", "lineage_page"]), ("/api/lineage", ["build_page", "page_as_json"])):
        renders.clear()
        first = reader.get(path, params=QUERY)
        assert renders == made
        for _ in range(5):
            again = reader.get(path, params=QUERY, headers={"If-None-Match": first.headers["etag"]})
            assert again.status_code == 304
        assert reader.get(path, params=QUERY).content == first.content, "a second viewer"
        assert renders == made
        other = reader.get(
            path, params=QUERY | {"state": "quarantined"}, headers={"If-None-Match": first.headers["etag"]}
        )
        assert (other.status_code, renders) == (200, made * 2)
    renders.clear()
    tables.set_state(KEY, "failed")
    assert reader.get("/lineage", params=QUERY, headers={"If-None-Match": first.headers["etag"]}).status_code == 200
    assert renders == ["build_page", "lineage_page"], "what Airflow says is on the page too"


def test_many_viewers_at_once_cost_one_page(reader: TestClient, renders: list[str]) -> None:
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda _: reader.get("/lineage", params=QUERY), range(12)))
    assert {answer.status_code for answer in found} == {200}
    assert len({answer.headers["etag"] for answer in found}) == 1
    assert renders == ["build_page", "lineage_page"]


def test_a_page_of_a_bucket_that_went_away_is_made_anew(
    reader: TestClient, bucket: Bucket, tables: Tables, renders: list[str]
) -> None:
    """An XCom's page depends on the XCom, which has no version of its own."""
    bucket.answer = StoreUnreachable("No answer")
    for reason in ("node 3 died", "node 4 died"):
        forged = lineage_xcom(seen().lineage)
        forged["attempts"][-1] |= {"failure_kind": "infrastructure", "failure_reason": reason}
        tables.push("checkpoint_lineage", forged)
        assert reason in reader.get("/lineage", params=QUERY).text
        assert reader.get("/lineage", params=QUERY).status_code == 200
    assert renders == ["build_page", "lineage_page"] * 2


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


@pytest.mark.parametrize(
    "odd", ['"\\ud800"', '"x\\u0000"', "[" * 50_000, '{"experiment": "s3://m/\\udfff", "attempts": []}']
)
def test_an_xcom_with_half_a_character_or_no_end_is_no_error(
    reader: TestClient, bucket: Bucket, tables: Tables, odd: str
) -> None:
    """JSON can spell what no answer can hold; anybody who may write an XCom can write it."""
    for key in ("checkpoint_lineage", "experiment_url", "ray_job_url"):
        tables.push(key, odd if key == "checkpoint_lineage" else odd.replace('"', '"http://h/', 1))
    for answer in (bucket.answer, StoreUnreachable("No answer")):
        bucket.answer = answer
        for path in PAGES:
            assert reader.get(path, params=QUERY).status_code in (200, 303, 503), path


def test_a_record_with_half_a_character_gives_a_page(
    client: TestClient, tables: Tables, bucket: Bucket, token: Callable[[str], str]
) -> None:
    tables.add_task()
    tables.keep(KEY, JOB | {"experiment": "s3://models/a\ud800b"})
    client.cookies.set("_token", token("reader of d"))
    for path in PAGES:
        assert client.get(path, params=QUERY).status_code in (200, 303), path
    assert {r.experiment for r in bucket.asked} == {"s3://models/a\ufffdb"}


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


def test_a_state_store_that_fails_is_not_a_task_without_an_experiment(
    reader: TestClient, tables: Tables, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "Could not read" is never "nothing there"; where an XCom names the experiment, it is enough."""

    def away() -> Any:
        raise OSError("password=hunter2 at the backend")

    monkeypatch.setattr("airflow.state.get_state_backend", away)
    answer = reader.get("/lineage", params=QUERY)
    assert answer.status_code == 503
    assert "can&#39;t be read" in answer.text
    assert "OSError" in answer.text
    assert "hunter2" not in answer.text
    assert bucket.asked == []
    tables.push("ray_train_job", json.dumps(JOB))
    assert reader.get("/lineage", params=QUERY).status_code == 200
    assert [one.experiment for one in bucket.asked] == [URI]


def test_json_is_strict(reader: TestClient, bucket: Bucket) -> None:
    def no_constant(text: str) -> None:
        raise AssertionError(text)

    json.loads(reader.get("/api/lineage", params=QUERY).text, parse_constant=no_constant)
