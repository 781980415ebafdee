"""Names derived from the task instance: stable over tries, safe in URLs, keys and file names, never shared."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.identity import TaskInstanceKey, checked_storage_path, experiment_uri, legible, submission_id
from tests.support.records import ref

CASES = Path(__file__).parents[2] / "fixtures" / "cases"
ID = re.compile(r"[A-Za-z0-9_-]{1,200}")
KEY = TaskInstanceKey("demo", "manual__2026-11-29T00:00:00+00:00", "train")
ROOT = "s3://models/churn"


def names(key: TaskInstanceKey) -> tuple[str, str]:
    uri = experiment_uri(ROOT, key)
    return uri, submission_id(uri, key, ref(1, 1))


def c56() -> list[TaskInstanceKey]:
    """Every combination of the odd ids that people reported."""
    ids = json.loads((CASES / "C56" / "ids.json").read_text())
    parts = (ids["dag_ids"], ids["run_ids"], ids["task_ids"], ids["map_index"])
    return [TaskInstanceKey(*combination) for combination in itertools.product(*parts)]


@pytest.mark.scenario("C56")
def test_odd_ids_give_legal_and_distinct_names() -> None:
    """C56: Ray uses the id in a URL path and in `job-driver-<id>.log`."""
    keys = c56()
    made = [names(key) for key in keys]
    assert len({uri for uri, _ in made}) == len({job for _, job in made}) == len(keys)
    for uri, job in made:
        assert ID.fullmatch(job), job
        assert len(f"job-driver-{job}.log") <= 255
        parts = uri.removeprefix(f"{ROOT}/").split("/")
        assert len(parts) == 3
        assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,120}", p) and p.strip(".") for p in parts), uri


@pytest.mark.parametrize(
    "pair", [("a:b", "a_b"), ("a_b", "A_b"), ("a b", "a-b"), ("x" * 250, "x" * 249), ("..", ""), ("ä", "ö")]
)
def test_ids_that_look_alike_stay_apart(pair: tuple[str, str]) -> None:
    one, other = (names(TaskInstanceKey("demo", run_id, "train")) for run_id in pair)
    assert one[0].lower() != other[0].lower()
    assert one[1].lower() != other[1].lower()


def test_parts_cannot_be_shifted_into_each_other() -> None:
    assert TaskInstanceKey("a", "b", "c.d").digest != TaskInstanceKey("a", "b.c", "d").digest
    assert TaskInstanceKey("a", "bc", "d").digest != TaskInstanceKey("ab", "c", "d").digest


@pytest.mark.scenario("C55")
def test_mapped_instances_have_names_of_their_own() -> None:
    """C55: three mapped ones and the unmapped sibling."""
    made = [names(TaskInstanceKey("demo", "r", "tg.train", i)) for i in (-1, 0, 1, 2)]
    assert len({uri for uri, _ in made}) == len({job for _, job in made}) == 4
    assert "tg.train-2/" in made[3][0]


def test_names_are_stable_over_tries() -> None:
    """A retry finds the experiment by deriving the same path; pinned, so that an upgrade finds it too."""
    uri, job = names(KEY)
    assert uri == f"{ROOT}/demo/train/manual__2026-11-29T00-00-00-00-00-{KEY.digest}"
    assert KEY.digest == "f15b027778ca"
    assert job == "af-demo-train-manual__2026-11-29T00-00-00-00-00-08ddaecf91fa-g1-a1"


def test_each_attempt_has_an_id_of_its_own() -> None:
    ids = {submission_id("s3://b/e", KEY, ref(g, a)) for g in (1, 2, 11) for a in (1, 2, 11, 112)}
    assert len(ids) == 12


def test_the_same_instance_in_another_bucket_has_another_job() -> None:
    """Two environments share a cluster and their DAGs."""
    assert submission_id("s3://dev/e", KEY, ref(1, 1)) != submission_id("s3://prod/e", KEY, ref(1, 1))


@pytest.mark.scenario("C69")
def test_a_chosen_name_is_shared_by_runs_but_their_jobs_are_not() -> None:
    """C69: the folder's owner record refuses the second run; its job id must not hit the first one's."""
    other = TaskInstanceKey("demo", "backfill__2026-11-28", "train")
    uris = {experiment_uri(ROOT, key, experiment_name="resnet") for key in (KEY, other)}
    assert uris == {f"{ROOT}/resnet"}
    assert len({submission_id(f"{ROOT}/resnet", key, ref(1, 1)) for key in (KEY, other)}) == 2


@given(st.text(max_size=260), st.text(max_size=260), st.text(max_size=260), st.integers(-1, 100_000))
def test_any_ids_give_legal_names(dag_id: str, run_id: str, task_id: str, map_index: int) -> None:
    key = TaskInstanceKey(dag_id, run_id, task_id, map_index)
    uri = experiment_uri(ROOT, key)
    assert ID.fullmatch(submission_id(uri, key, ref(999_999, 999_999)))
    assert checked_storage_path(uri) == uri


@given(st.text())
def test_legible_text_is_never_empty_dots_or_long(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,47}", legible(text))
    assert not legible(text).endswith((".", "-"))


@pytest.mark.scenario("C11")
@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("s3://bkt", "s3://bkt/resnet"),
        ("s3://bkt/", "s3://bkt/resnet"),
        ("s3://bkt/exp", "s3://bkt/exp/resnet"),
        ("s3://bkt/exp/", "s3://bkt/exp/resnet"),
        ("s3://bkt/a b/ü", "s3://bkt/a b/ü/resnet"),
        ("/data", "/data/resnet"),
        ("/data/", "/data/resnet"),
        ("/", "/resnet"),
    ],
)
def test_a_trailing_slash_changes_nothing(path: str, uri: str) -> None:
    """C11: clients think differently about it."""
    assert experiment_uri(path, KEY, experiment_name="resnet") == uri


@pytest.mark.parametrize(
    "path",
    [
        "s3://bkt//exp",
        "s3://bkt/a//b",
        "s3://bkt/../x",
        "s3://bkt/.",
        "s3://bkt/a?region=eu",
        "s3://bkt/a#b",
        "s3://",
        "s3:///x",
        "s3://B_kt/x",
        "s3://user:secret@bkt/x",
        "gs://bkt/x",
        "relative/path",
        "",
    ],
)
def test_ambiguous_storage_paths_are_refused(path: str) -> None:
    with pytest.raises(InvalidConfig, match="storage_path") as caught:
        checked_storage_path(path)
    assert caught.value.change


@pytest.mark.parametrize("name", ["", "/abs", "a//b", "a/", "..", "a/../b", ".", "a\0b", "a?b", "a#b"])
def test_a_chosen_name_that_is_no_folder_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match="experiment_name"):
        experiment_uri(ROOT, KEY, experiment_name=name)


def test_a_key_reads_well_in_messages() -> None:
    assert str(TaskInstanceKey("d", "r", "t", 3)) == "d.t[3] of r"
    assert str(TaskInstanceKey("d", "r", "t")) == "d.t of r"
