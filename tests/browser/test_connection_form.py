"""The form of a Ray connection in Airflow's UI: what its fields mean, and a test that never shows the token."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from airflow_provider.provider_info import get_provider_info
from tests.browser.test_lineage_page import shoot
from tests.stack.airflow_client import AirflowClient
from tests.stack.services import Stack

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
WRONG = "a-token-that-nobody-has"


def test_the_form_explains_its_fields_and_its_test_never_shows_the_token(
    log_in: Callable[..., Page], stack: Stack, airflow: AirflowClient
) -> None:
    page = log_in()
    page.goto("/connections")
    page.get_by_role("button", name=re.compile("add connection", re.IGNORECASE)).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Connection ID").fill("ray_by_mouse")
    choose_type(page, dialog)
    dialog.get_by_text("Dashboard address").wait_for()
    dialog.get_by_role("button", name="Extra Fields", exact=True).click()
    (ray,) = get_provider_info()["connection-types"]
    for field in ray["conn-fields"].values():
        dialog.get_by_text(field["label"]).first.wait_for()
        dialog.get_by_text(field["description"]).wait_for()
    shoot(page, "connection-form")
    page.keyboard.press("Escape")

    for conn_id, token in (("ray_right", stack.ray.token), ("ray_wrong", WRONG)):
        # Airflow 3.3.2's page sends port 0 for a connection without one, and refuses that as another port than the stored.
        host, _, port = stack.ray.shown_address.rpartition(":")
        body = {"connection_id": conn_id, "conn_type": "ray", "host": host, "port": int(port), "password": token}
        airflow.request("POST", "/connections", json=body)
        page.goto("/connections")
        row = page.get_by_role("row").filter(has_text=conn_id)
        button = row.get_by_role("button", name=re.compile("test connection", re.IGNORECASE))
        with page.expect_response(lambda answer: "/connections/test" in answer.url) as answer:
            button.click()
        said = answer.value.json()
        assert answer.value.ok, (said, answer.value.request.post_data)
        assert said["status"] is (token == stack.ray.token), said
        assert (stack.ray.session_name() if said["status"] else "403") in said["message"]
        shoot(page, f"connection-{conn_id}")
        for secret in (stack.ray.token, WRONG):
            assert secret not in answer.value.text()
            assert secret not in page.content()


def choose_type(page: Page, dialog: Locator) -> None:
    """Airflow's list of types is a field to type into."""
    field = dialog.get_by_role("combobox").first
    field.click()
    page.keyboard.type("Ray")
    page.get_by_role("option", name=re.compile("^ray$", re.IGNORECASE)).click()
