"""A real Airflow, Ray and S3, and a headless Chromium that is logged in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.stack.airflow_client import AirflowClient
from tests.stack.services import Stack

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / ".make" / "screenshots"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The machine's Chromium; without one the tests fail and say what to install."""
    if not Path(CHROMIUM).is_file():
        pytest.fail(f"There is no Chromium at {CHROMIUM}: `apt-get install chromium`, or CHROMIUM=/path make browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("Playwright is not installed: `make browser` installs it, or `pip install '.[browser]'`")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        # Its sandbox needs rights that containers rarely give; the pages are our own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """S3, Ray and Airflow with the trainings of the end-to-end tests."""
    dags = ROOT / "tests" / "e2e" / "dags"
    with Stack(
        tmp_path_factory.mktemp("stack"),
        dags=[dags],
        airflow_env={"AIRFLOW__CORE__TEST_CONNECTION": "Enabled"},
        is_gated=True,
    ) as stack:
        yield stack


@pytest.fixture(scope="session")
def airflow(stack: Stack) -> Iterator[AirflowClient]:
    """A logged-in user of the REST API."""
    with stack.airflow.client() as client:
        yield client


@pytest.fixture
def log_in(stack: Stack, browser: Browser) -> Iterator[Callable[..., Page]]:
    """A fresh browser window in which somebody has logged in by the form. Closed after the test: an open page goes on polling."""
    contexts: list[BrowserContext] = []

    def log_in(username: str = stack.airflow.username, *, theme: str = "light") -> Page:
        context = browser.new_context(viewport={"width": 1440, "height": 1000}, base_url=stack.airflow.url)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.add_init_script(f"localStorage.setItem('theme', '{theme}')")
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.goto("/auth/login")
        page.locator("input[name=username], input#username, input[type=text]").first.fill(username)
        page.locator("input[type=password]").first.fill(stack.airflow.password)
        page.locator("button[type=submit], button:has-text('Sign in')").first.click()
        page.wait_for_url(lambda url: "/auth/login" not in url)
        return page

    yield log_in
    for context in contexts:
        context.close()
