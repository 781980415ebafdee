"""Texts of metrics, paths and exceptions stay texts, whatever stands in them."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.lineage import ExperimentFacts
from airflow_provider.core.records import RecordSegment, RestartEntry
from airflow_provider.core.strict_json import storable
from airflow_provider.plugin.answers import Answer
from airflow_provider.plugin.recorded import Training
from airflow_provider.plugin.rendering import (
    Addresses,
    Listed,
    Shown,
    key_query,
    lineage_page,
    message_page,
    trainings_page,
)
from airflow_provider.plugin.view.facts import Problem, Recorded, Seen
from airflow_provider.plugin.view.page import Choice, build_page, page_as_json
from airflow_provider.plugin.view.words import web_address
from tests.support.lineage_page import after, facts, recorded, seen
from tests.support.records import NOW, attempt_records, claim, entry, manifest, owner

EVIL = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</svg></title></textarea><script>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "&lt;script&gt;",
    "]]><!--",
    "\u2028\u202e\x0b",
)
texts = st.one_of(
    st.sampled_from(EVIL), st.text(max_size=40), st.tuples(st.sampled_from(EVIL), st.text(max_size=9)).map("".join)
)


class Structure(HTMLParser):
    """The page's elements and attributes without their texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.addresses: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action")]


def page_with(text: str, **changes: Any) -> str:
    """A page with the text wherever a record, a metric or Airflow may have one."""
    reason = Failure(kind=FailureKind.USER, reason=text)
    lost = RestartEntry(failure=reason, decision=text, at=after(3))
    # Records refuse checkpoints with characters that no text has, or that leave their folder.
    safe = storable(text).replace("\ufffd", "x").replace("/", "_").replace("..", "_") or "x"
    name = f"attempts/000001/{safe}"
    first = attempt_records(
        1,
        claim=claim(1, 1, address=text, submission_id=text, intent=text, created_at=NOW),
        segments=(
            RecordSegment(
                checkpoints=(
                    entry(name, 5, metrics={text: text, "loss": 1.0, f"{text}2": 3.5}),
                    entry("attempts/000001/b", 6, metrics={"loss": 0.5}, parent=name, warm_started_from=f"s3://{text}"),
                ),
                restarts=(lost,),
                written_at=NOW,
            ),
        ),
        manifest=manifest(name, "attempts/000001/b"),
    )
    found = ExperimentFacts(f"s3://b/{text}", (owner(1),), (first,), {})
    task = recorded(
        **{
            "key": TaskInstanceKey(text, text, text, 3),
            "state": text,
            "job_url": text,
            "experiment_url": f"http://h/{text}",
            "experiment": f"s3://b/{text}",
            **changes,
        }
    )
    choice = Choice.read({"metric": text, "checkpoint": f"g000001/{name}", "state": text, "order": text})
    at_hand = seen(found, quarantine={f"g000001/{name}": text})
    link = Addresses("lineage", key_query(task.key) | {"metric": text, "attempt": text})
    problem = Problem(text, text, text)
    return lineage_page(Shown(task, at_hand, build_page(task, at_hand, choice), problem), choice, link)


@pytest.fixture(scope="module")
def plain() -> Structure:
    return Structure(page_with("plain"))


@given(text=texts)
def test_no_text_becomes_markup(plain: Structure, text: str) -> None:
    html = page_with(text)
    found = Structure(html)
    assert set(found.tags) <= set(plain.tags)
    assert found.tags.count("script") == 1
    assert found.attributes <= plain.attributes
    odd = [a for a in found.addresses if ":" in a.split("/")[0] and not a.startswith(("http://", "https://"))]
    assert odd == ["data:,"], "the icon of the frame's page"


HALF = "a\ud800"


def with_texts(text: str) -> Seen:
    """A lineage with the text as every name, past the checks that records and XComs go through."""
    found = seen()
    names = [c.name for c in found.lineage.checkpoints]

    def renamed(name: str | None) -> str | None:
        return f"{name}{text}" if name in names else name

    checkpoints = tuple(
        replace(c, name=renamed(c.name), parent=renamed(c.parent), metrics={text: text, "loss": 1.0})
        for c in found.lineage.checkpoints
    )
    attempts = tuple(
        a.model_copy(
            update={
                "submission_id": text,
                "failure_reason": text,
                "restore_reason": text,
                "restored_from": renamed(a.restored_from),
                "warm_started_from": text,
            }
        )
        for a in found.lineage.attempts
    )
    lineage = found.lineage.model_copy(update={"checkpoints": checkpoints, "attempts": attempts, "experiment": text})
    return replace(found, lineage=lineage, facts=None, quarantine={names[0]: text})


@given(text=st.one_of(st.just(HALF), st.text(st.characters(), max_size=20)))
@example(text=HALF)
def test_half_of_a_character_is_no_error(text: str) -> None:
    """Neither UTF-8 nor an address has lone surrogates, and Python's texts do."""
    found = with_texts(text)
    task = recorded(
        key=TaskInstanceKey(text, text, text),
        state=text,
        experiment=text,
        job_url=f"http://h/{text}",
        experiment_url=f"http://h/{text}",
    )
    choice = Choice(checkpoint=found.lineage.checkpoints[-1].name, metric=text)
    page = build_page(task, found, choice)
    link = Addresses("lineage", key_query(task.key) | {"metric": text})
    html = lineage_page(Shown(task, found, page, Problem(text, text, text)), choice, link)
    assert Answer.of(html).body.decode()
    assert Answer.of(json.dumps(page_as_json(page), allow_nan=False)).body.decode()
    # The link leads to the checkpoint that it stands beside.
    queries = (parse_qs(urlsplit(a).query, keep_blank_values=True) for a in Structure(html).addresses)
    asked = {q["checkpoint"][0] for q in queries if "checkpoint" in q}
    assert len(asked) >= 4
    for name in asked:
        detail = build_page(task, found, Choice(checkpoint=name)).detail
        assert detail is not None
        assert storable(detail.row.name) == storable(name)
    row = Training(task.key, text, NOW, text, 1)
    for run_id in (None, text):
        listed = Addresses("run", {} if run_id is None else {"run_id": run_id})
        assert Answer.of(trainings_page(text, Listed([row], 1, 1, 1), empty=text, link=listed)).body.decode()
    assert Answer.of(message_page(text, text=text)).body.decode()


@given(text=texts)
def test_no_message_becomes_markup(text: str) -> None:
    found = Structure(message_page(text, text=text, problem=Problem(text, text, text)))
    assert sorted(found.tags) == sorted(
        Structure(message_page("h", text=text and "t", problem=Problem("a", text and "b", text and "c"))).tags
    )


@given(text=st.text(max_size=60))
def test_only_web_addresses_become_links(text: str) -> None:
    for address in (text, f"javascript:{text}", f"data:{text}", f"vbscript:{text}", f"//{text}", f"http:{text}"):
        allowed = web_address(address)
        assert allowed is None or allowed.startswith(("http://", "https://", "HTTP", "hTTP", "Http"))
    assert web_address(f"http://user:secret@h/{text}") is None


def test_a_snippet_is_python_with_the_checkpoint_in_it() -> None:
    choice = Choice(checkpoint="g000001/attempts/000001/checkpoint_002")
    page = build_page(recorded(), seen(), choice)
    assert page.detail is not None
    restore, warm = page.detail.snippets
    calls = [ast.parse(one.code).body[0] for one in (restore, warm)]
    values = {
        keyword.arg: ast.literal_eval(keyword.value)
        for call in calls
        if isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
        for keyword in call.value.keywords
    }
    assert values["restore"] == {"mode": "explicit", "checkpoint": "attempts/000001/checkpoint_002"}
    assert values["warm_start"] == f"{seen().lineage.experiment}/g000001/attempts/000001/checkpoint_002"


def page_of(task: Recorded, found: Seen | None) -> str:
    page = build_page(task, found, Choice()) if found else None
    return lineage_page(Shown(task, found, page, None), Choice(), Addresses("lineage", key_query(task.key)))


def test_odd_ids_make_addresses_all_the_same() -> None:
    task = recorded(key=TaskInstanceKey("d/é", "r/1+2", "t", 4))
    assert "<h1>" in page_of(task, None)
    assert "../dags/d%2F%C3%A9/runs/r%2F1%2B2/tasks/t/mapped/4?try_number=2" in page_of(task, seen())


def test_the_page_of_nothing_claimed() -> None:
    html = page_of(recorded(state="running", tries=()), seen(ExperimentFacts("s3://b/x", (), (), {})))
    for part in (
        "nothing claimed yet",
        "Nothing has begun yet",
        "No checkpoint yet",
        "No attempt has been claimed yet",
    ):
        assert part in html


def test_facts_of_the_tests_have_every_state() -> None:
    states = {c.state for c in seen(facts()).lineage.checkpoints}
    assert states == {"committed", "pruned", "quarantined"}
