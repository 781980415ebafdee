"""`airflow ray-train doctor`: everything a training needs before it is sent, looked at one by one."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from airflow_provider.cli import wording
from airflow_provider.cli.answer import Answer, command
from airflow_provider.cli.doctor_bucket import check_bucket
from airflow_provider.cli.doctor_cluster import check_cluster
from airflow_provider.cli.exit_codes import OK, PROBLEM
from airflow_provider.cli.findings import Finding, Health, ok, problem
from airflow_provider.cli.target import DEFAULT_AWS_CONN_ID, DEFAULT_CONN_ID
from airflow_provider.core.errors import InvalidConfig

if TYPE_CHECKING:
    from argparse import Namespace

    from rich.console import Console

OLDEST_AIRFLOW = (3, 3, 2)
OLDEST_BOTO3 = (1, 36)
"""Conditional writes."""
_STYLES = {Health.OK: "green", Health.WARNING: "yellow", Health.PROBLEM: "bold red", Health.SKIPPED: "dim"}


def check_versions() -> Iterator[Finding]:
    """What is installed here."""
    said = {name: _installed(name) for name in ("apache-airflow", "airflow-provider-ray-train", "boto3")}
    shown = ", ".join(f"{name} {text or 'missing'}" for name, text in said.items())
    where = f"{shown}, Python {platform.python_version()}"
    for name, oldest in (("apache-airflow", OLDEST_AIRFLOW), ("boto3", OLDEST_BOTO3)):
        found = said[name]
        if found is None or wording.release(found) < oldest:
            least = ".".join(map(str, oldest))
            yield problem(
                "versions",
                f"{name} is {found or 'not installed'}",
                known=where,
                change=f"install {name} {least} or newer",
            )
            return
    yield ok("versions", where)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        # Airflow is also installed as its core alone.
        return _installed("apache-airflow-core") if name == "apache-airflow" else None


def examine(args: Namespace) -> Answer:
    """All checks, each whether or not the one before it was well. Raises InvalidConfig."""
    if not (math.isfinite(args.timeout) and args.timeout >= 0):
        raise InvalidConfig(f"--timeout {args.timeout:g} is no time to wait", change="write a number of seconds: 180")
    findings = list(_all_checks(args))
    num_problems = sum(1 for one in findings if one.health is Health.PROBLEM)
    data = {"findings": [one.data for one in findings], "num_problems": num_problems}
    return Answer(data, lambda console: show_findings(console, findings), PROBLEM if num_problems else OK)


def _all_checks(args: Namespace) -> Iterator[Finding]:
    conn_id = args.conn_id or DEFAULT_CONN_ID
    aws_conn_id = DEFAULT_AWS_CONN_ID if args.aws_conn_id is None else args.aws_conn_id or None
    yield from check_versions()
    yield from check_bucket(args.storage_path, aws_conn_id=aws_conn_id, is_read_only=args.read_only)
    yield from check_cluster(args, conn_id=conn_id, aws_conn_id=aws_conn_id)


def show_findings(console: Console, findings: list[Finding]) -> None:
    """A line for each, and two more for what isn't well."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in findings:
        table.add_row(Text(one.health.value, style=_STYLES[one.health]), Text(one.what))
        if one.known:
            table.add_row("", Text(f"known: {one.known}", style="dim"))
        if one.change:
            table.add_row("", Text(f"to do: {one.change}"))
    console.print(table)
    counts = {health: sum(1 for one in findings if one.health is health) for health in Health}
    problems = wording.count(counts[Health.PROBLEM], "problem")
    warnings = wording.count(counts[Health.WARNING], "warning")
    console.print(f"{problems}, {warnings}, {counts[Health.OK]} ok, {counts[Health.SKIPPED]} skipped")


doctor = command(examine)
