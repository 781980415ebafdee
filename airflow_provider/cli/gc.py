"""`airflow ray-train gc`: orphan jobs, uncommitted leftovers, old experiments. Looks only, unless told to act."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider.cli import wording
from airflow_provider.cli.answer import Answer, command
from airflow_provider.cli.discovery import Discovered, find_experiments
from airflow_provider.cli.exit_codes import OK, PROBLEM
from airflow_provider.cli.gc_experiments import ExperimentSearch
from airflow_provider.cli.gc_items import Item, Scope
from airflow_provider.cli.gc_jobs import JobSearch
from airflow_provider.cli.gc_leftovers import LeftoverSearch
from airflow_provider.cli.target import DEFAULT_AWS_CONN_ID, DEFAULT_CONN_ID, dashboard, open_folder
from airflow_provider.core.decision import ClusterSilent, JobSight
from airflow_provider.core.errors import InvalidConfig, RayTrainError
from airflow_provider.core.wait_parameters import experiment_path
from airflow_provider.operators.attempt_facts import look_at_job
from airflow_provider.storage.experiment_records import ExperimentRecords

if TYPE_CHECKING:
    from argparse import Namespace

    from rich.console import Console

    from airflow_provider.client.jobs_client import SyncJobsClient

LEAST_AGE_S = 3_600.0
"""Younger things may belong to a try that is about to read them."""
_TITLES = {Scope.JOB: "orphan jobs", Scope.LEFTOVER: "uncommitted leftovers", Scope.EXPERIMENT: "old experiments"}
_MOST_KEPT = 5
"""Kept things that are named, of each kind; `--all` names every one."""


def collect_garbage(args: Namespace) -> Answer:
    """Find what can go, and with `--apply` remove it."""
    scopes = _scopes(args)
    root = experiment_path(args.storage_path)
    older_than_s = wording.parse_age(args.older_than)
    if older_than_s < LEAST_AGE_S:
        raise InvalidConfig(f"--older-than {args.older_than} is too young", change="an hour (1h) is the least")
    aws_conn_id = DEFAULT_AWS_CONN_ID if args.aws_conn_id is None else args.aws_conn_id or None
    conn_id = args.conn_id or DEFAULT_CONN_ID
    client, trouble = _client(conn_id)
    try:
        if client is None and Scope.JOB in scopes and trouble is not None and _is_asked(args, Scope.JOB):
            raise trouble
        search = _Search(
            client=client,
            conn_id=conn_id,
            aws_conn_id=aws_conn_id,
            root=root,
            older_than_s=older_than_s,
            depth=args.depth,
        )
        items = [item for scope in scopes for item in search.find(scope)]
        if args.is_applied:
            items = [item.carried_out() for item in items]
    finally:
        if client is not None:
            client.close()
    num_failed = sum(1 for item in items if item.failed is not None)
    data = {
        "storage_path": root,
        "applied": bool(args.is_applied),
        "scopes": [scope.value for scope in scopes],
        "items": [item.data for item in items],
        "trouble": str(trouble) if trouble else search.trouble,
    }
    said = str(trouble) if trouble else search.trouble
    is_fine = not num_failed and said is None
    return Answer(
        data,
        lambda console: _show(console, items, scopes, trouble=said, args=args),
        OK if is_fine else PROBLEM,
    )


def _is_asked(args: Namespace, scope: Scope) -> bool:
    return bool({Scope.JOB: args.jobs, Scope.LEFTOVER: args.leftovers, Scope.EXPERIMENT: args.experiments}[scope])


def _scopes(args: Namespace) -> list[Scope]:
    asked = [scope for scope in Scope if _is_asked(args, scope)]
    if args.is_applied and not asked:
        raise InvalidConfig(
            "--apply needs to know what to remove", change="add --jobs, --leftovers or --experiments, one or more"
        )
    return asked or list(Scope)


def _client(conn_id: str) -> tuple[SyncJobsClient | None, RayTrainError | None]:
    try:
        return dashboard(conn_id), None
    except RayTrainError as error:
        return None, error


@dataclass(kw_only=True)
class _Search:
    """The searches with what they share."""

    client: SyncJobsClient | None
    conn_id: str
    aws_conn_id: str | None
    root: str
    older_than_s: float
    depth: int
    trouble: str | None = None
    """Why a kind could not be looked for."""

    def find(self, scope: Scope) -> Iterator[Item]:
        """All of one kind."""
        by_scope: dict[Scope, Callable[[], Iterator[Item]]] = {
            Scope.JOB: self._jobs,
            Scope.LEFTOVER: self._leftovers,
            Scope.EXPERIMENT: self._experiments,
        }
        yield from by_scope[scope]()

    def _discover(self) -> Discovered:
        return find_experiments(self.root, aws_conn_id=self.aws_conn_id, depth=self.depth)

    def _sight(self, job_id: str) -> JobSight:
        if self.client is None:
            return ClusterSilent("no connection to a cluster")
        return look_at_job(self.client, job_id)[0]

    def _open(self, uri: str) -> ExperimentRecords:
        return ExperimentRecords(open_folder(uri, aws_conn_id=self.aws_conn_id))

    def _jobs(self) -> Iterator[Item]:
        if self.client is None:
            return
        search = JobSearch(self.client, self.conn_id, self.aws_conn_id, self.root, self._open)
        try:
            yield from search.find()
        except RayTrainError as error:
            self.trouble = f"jobs: {error}"

    def _leftovers(self) -> Iterator[Item]:
        search = LeftoverSearch(self.older_than_s, self._sight)
        for found in self._discover().experiments:
            yield from search.find(found.uri, found.records)

    def _experiments(self) -> Iterator[Item]:
        yield from ExperimentSearch(self.older_than_s, self._sight, self._discover).find()


def _show(console: Console, items: list[Item], scopes: list[Scope], *, trouble: str | None, args: Namespace) -> None:
    for scope in scopes:
        own = [item for item in items if item.scope is scope]
        collected, kept = [i for i in own if i.deed is not None], [i for i in own if i.deed is None]
        console.print(f"{_TITLES[scope]}: {len(collected)} found, {len(kept)} kept", style="bold")
        for item in collected:
            _show_item(console, item)
        shown = kept if args.is_all else kept[:_MOST_KEPT]
        for item in shown:
            _show_item(console, item)
        if len(shown) < len(kept):
            console.print(f"  {len(kept) - len(shown)} more are kept (--all)", style="dim")
    if trouble is not None:
        console.print(f"could not look everywhere: {trouble}", style="yellow", soft_wrap=True)
    if not args.is_applied:
        console.print("dry run: nothing was changed (--apply)")


def _show_item(console: Console, item: Item) -> None:
    verdict, style = ("keep", "dim") if item.deed is None else ("collect", "yellow")
    if item.done is not None:
        verdict, style = "done", "green"
    if item.failed is not None:
        verdict, style = "failed", "red"
    amount = f", {wording.size(item.num_bytes)}" if item.num_bytes is not None else ""
    console.print(f"  {verdict}  {item.name}{amount}", style=style, soft_wrap=True)
    console.print(f"      {item.failed or item.done or item.why}", style="dim", soft_wrap=True)


gc = command(collect_garbage)
