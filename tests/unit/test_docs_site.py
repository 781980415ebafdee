"""What the site adds to the pages, and that the drawn state machine has the code's states and no others."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

from airflow.sdk import Connection

from airflow_provider.client.address import ClusterAddress
from airflow_provider.core.decision import Decision
from airflow_provider.core.lineage import CheckpointState
from airflow_provider.core.records import OutcomeState
from airflow_provider.hooks.ray import read_connection
from tests.site.pages import named_pages, on_config, outside_links, source_page

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_links_that_leave_the_docs_are_found_from_any_folder() -> None:
    text = "[a](../../dags/x.py) [b](../assets.md#x) [c](https://example.org/x.py) [d](other.md)"
    assert outside_links(text, page="guides/retries.md") == {"../../dags/x.py": "dags/x.py"}
    assert outside_links("[a](../dags/x.py)", page="assets.md") == {"../dags/x.py": "dags/x.py"}
    assert outside_links("[a](../../../etc/passwd)", page="guides/retries.md") == {}


def test_a_drawing_outside_the_docs_stays_a_drawing() -> None:
    found = outside_links("![import](../benchmarks/results/import.svg)", page="benchmarks.md")
    assert found == {"../benchmarks/results/import.svg": "benchmarks/results/import.svg"}
    assert source_page("benchmarks/results/import.svg") == "source/benchmarks/results/import.svg"
    assert source_page("dags/x.py") == "source/dags/x.py.md"


def test_a_page_that_the_navigation_forgets_is_added(tmp_path: Path) -> None:
    for name in ("index.md", "new.md"):
        (tmp_path / name).write_text("# A page")
    config = cast("Any", SimpleNamespace(docs_dir=str(tmp_path), nav=[{"Home": "index.md"}, {"More pages": []}]))
    assert named_pages(config.nav) == {"index.md"}
    assert on_config(config).nav == [{"Home": "index.md"}, {"More pages": []}, {"More": ["new.md"]}]
    assert named_pages(config.nav) == {"index.md", "new.md"}


def test_connections_that_are_given_as_json_can_be_read() -> None:
    page = (DOCS / "getting-started" / "existing-cluster.md").read_text()
    ray, aws = (
        Connection.from_json(text) for text in re.findall(r"^export AIRFLOW_CONN_\w+='(.*)'$", page, re.MULTILINE)
    )
    address, credentials = read_connection(ray, extra=ray.extra_dejson)
    assert str(address) == "https://gateway.example/ray/team-a"
    assert credentials.headers() == {"Authorization": "Bearer the-token"}
    assert aws.conn_type == "aws"
    assert aws.extra_dejson["endpoint_url"] == "http://s3.storage:8333"


def test_addresses_mean_what_the_page_says() -> None:
    page = (DOCS / "getting-started" / "existing-cluster.md").read_text()
    rows = re.findall(
        r"^\| `([\w.:/-]+)` \| (https?, port \d+|as it says|https with a path prefix[^|]*) \|$", page, re.MULTILINE
    )
    found = {text: ClusterAddress.parse(text) for text, _ in rows}
    assert len(found) == 4
    assert [a.http("/api") for a in found.values()] == [
        "http://10.0.0.5:8265/api",
        "http://10.0.0.5:8265/api",
        "https://gateway.example/api",
        "https://gateway.example/ray/team-a/api",
    ]


def drawn(name: str, *, kind: str) -> set[str]:
    """Names in the boxes of a drawing that the concepts' page shows."""
    assert f"({name}.svg)" in (DOCS / "concepts" / "state-machine.md").read_text()
    picture = (DOCS / "concepts" / f"{name}.svg").read_text()
    return set(re.findall(rf'<text class="name {kind}"[^>]*>([^<]+)<', picture))


def test_each_decision_is_drawn() -> None:
    assert drawn("one-try", kind="decision") == {decision.__name__ for decision in get_args(Decision)}


def test_each_outcome_of_an_attempt_is_drawn() -> None:
    states = drawn("one-attempt", kind="state")
    outcomes = {state.value for state in OutcomeState}
    assert states - {"claimed", "submitted", "training", "lost", "accepted", "refused"} == outcomes


def test_each_state_of_a_checkpoint_is_drawn() -> None:
    assert drawn("one-checkpoint", kind="state") - {"uploaded"} == set(get_args(CheckpointState))
