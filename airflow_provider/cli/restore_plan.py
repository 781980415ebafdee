"""`airflow ray-train restore-plan`: what the next try would do, by the same reads and the same decision. Writes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow_provider.cli import wording
from airflow_provider.cli.answer import Answer, command
from airflow_provider.cli.exit_codes import OK, PROBLEM
from airflow_provider.cli.next_try import NextTry, read_next_try
from airflow_provider.cli.target import Target, find_target, open_folder
from airflow_provider.core.decision import (
    AttemptFacts,
    Decision,
    JobSight,
    Refuse,
    Restore,
    Start,
    StopThenRestore,
    TryFacts,
    decide_submission,
    detect_clear,
    replaced_by,
)
from airflow_provider.core.errors import (
    ForeignExperiment,
    NoParentCheckpoint,
    NoUsableCheckpoint,
    RayTrainError,
    RecordUnreadable,
)
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.job import meaning_of_clear
from airflow_provider.core.parent import conclude_again
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.restore import RestorePoint, policy_of_attempt
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.operators.attempt_facts import look_at_job, read_facts
from airflow_provider.storage.parent_scan import ParentScan
from airflow_provider.storage.restore_scan import has_committed, scan_restore_point

if TYPE_CHECKING:
    from argparse import Namespace

    from rich.console import Console

    from airflow_provider.client.protocol import JobsClient
    from airflow_provider.core.records import OwnerRecord
    from airflow_provider.storage.experiment_records import AttemptRecords, ExperimentRecords
    from airflow_provider.storage.object_store import ObjectStore


@dataclass(frozen=True)
class Plan:
    """What a try would decide, and from where it would train."""

    uri: str
    key: TaskInstanceKey
    next_try: NextTry
    decision: Decision
    newest: AttemptFacts | None
    point: RestorePoint | None = None
    parent: str | None = None
    """URI of the warm start's parent, where nothing of the generation is committed."""
    failure: RayTrainError | None = None
    """Why the try would fail before it claims."""
    refused: RayTrainError | None = None
    """What the dashboard refused, where the decision had to do without its answer."""
    assumed: tuple[str, ...] = field(default=())
    is_clear_counted: bool = False
    """Whether the try's counters show a clear, whatever it answers first."""

    @property
    def reason(self) -> str:
        """Why, in the decision's own sentence."""
        return self.decision.failure.reason if isinstance(self.decision, Refuse) else self.decision.reason

    @property
    def restore_reason(self) -> str | None:
        """Why it would begin where it does."""
        if self.point is None:
            return None
        return f"warm start's parent: {self.point.why_nothing}" if self.parent else self.point.reason

    @property
    def attempt(self) -> AttemptRef | None:
        """The attempt that the try would claim, join or collect."""
        decision = self.decision
        if isinstance(decision, Refuse):
            return None
        return decision.next_ref if isinstance(decision, StopThenRestore) else decision.ref

    @property
    def is_clear_assumed(self) -> bool:
        """Whether the decision answers a clear that nobody has made yet."""
        return self.next_try.after == "clear"

    @property
    def after(self) -> str:
        """What starts the next try: also a clear that Airflow has counted."""
        return "clear" if self.is_clear_assumed or self.is_clear_counted else "retry"

    @property
    def is_trouble(self) -> bool:
        """Whether the next try would fail."""
        return self.failure is not None or isinstance(self.decision, Refuse)


def make_plan(
    records: ExperimentRecords, client: JobsClient, *, key: TaskInstanceKey, next_try: NextTry, on_clear: Any
) -> Plan:
    """Read what a try reads, decide as it decides, and look for its restore point."""
    refusals: list[RayTrainError] = []

    def sight(job_id: str) -> JobSight:
        seen, refused = look_at_job(client, job_id)
        refusals[:] = [refused] if refused is not None else []
        return seen

    attempt, newest = read_facts(records, sight)
    claim = newest.claim if newest else None
    if claim is not None:
        on_clear = meaning_of_clear(on_clear, claim.asked)
    decision = decide_submission(
        next_try.facts,
        newest,
        on_clear=on_clear,
        # As if the DAG asked for the same again; another request matters only to a job that never arrived.
        spec_digest=claim.spec_digest if claim else "",
        code_digest=claim.code_digest if claim else "",
        now=datetime.now(timezone.utc),
    )
    plan = Plan(
        records.store.uri,
        key,
        next_try,
        decision,
        newest,
        refused=refusals[0] if refusals else None,
        is_clear_counted=newest is not None and _is_clear(next_try.facts, newest.acting_owner, on_clear=on_clear),
    )
    if not isinstance(decision, Start | Restore | StopThenRestore) or plan.attempt is None:
        return plan
    if newest is None:
        # Of no job the cluster was asked yet; the claim names its session.
        try:
            client.version()
        except RayTrainError as error:
            return replace(plan, failure=error)
    return _with_restore_point(plan, records, attempt, ref=plan.attempt)


def _is_clear(facts: TryFacts, acting: OwnerRecord, *, on_clear: Any) -> bool:
    return replaced_by(facts, acting) is None and detect_clear(facts, acting, on_clear=on_clear).is_clear


def _with_restore_point(
    plan: Plan, records: ExperimentRecords, attempt: AttemptRecords | None, *, ref: AttemptRef
) -> Plan:
    asked = attempt.claim.asked if attempt else RestorePolicy()
    policy = policy_of_attempt(
        asked,
        before=attempt.claim if attempt and ref.attempt > 1 else None,
        has_committed=attempt is not None and has_committed(records, attempt),
        answers_clear=isinstance(plan.decision, Start | Restore | StopThenRestore) and plan.decision.answers_clear,
    )
    assumed = [f"restore is {asked.mode!r}, on_corrupt {asked.on_corrupt!r}, as in the newest claim"] if attempt else []
    if policy != asked:
        assumed.append(f"a retry goes on from what was committed under {asked.checkpoint}")
    point, failure, parent = None, None, None
    try:
        # Without the folder as a try reads it, which counts its calls: what the driver will judge is told, too.
        point = scan_restore_point(records, ref=ref, policy=policy)
    except (NoUsableCheckpoint, RecordUnreadable) as error:
        failure = error
    if attempt is not None and ref.attempt > 1 and (point is None or point.candidate is None):
        warm = attempt.claim.warm_start
        parent = warm.parent.uri if warm is not None and warm.parent is not None else None
    if ref.attempt == 1:
        assumed.append("the generation begins from the start, unless the operator has a warm_start")
    return replace(plan, point=point, parent=parent, failure=failure, assumed=tuple(assumed))


def with_checked_parent(plan: Plan, open_store: Callable[[str], ObjectStore]) -> Plan:
    """A try whose generation has committed nothing looks whether its parent is still what it was."""
    warm = plan.newest.claim.warm_start if plan.newest is not None else None
    if plan.parent is None or warm is None or warm.parent is None or plan.failure is not None:
        return plan
    try:
        verdict = ParentScan(open_store, policy=RestorePolicy()).verify(warm.parent)
        conclude_again(warm, verdict, missing="fail")
    except NoParentCheckpoint as error:
        return replace(plan, failure=error, assumed=(*plan.assumed, "warm_start has missing='fail'"))
    return plan


def plan_next_try(args: Namespace) -> Answer:
    """Find the task instance behind an experiment, and plan its next try."""
    target = find_target(args)
    records = target.records()
    owners = records.owners()
    newest = owners[max(owners)]
    key = TaskInstanceKey(newest.dag_id, newest.run_id, newest.task_id, newest.map_index)
    _check_mine(target, key)
    next_try = read_next_try(key, owners, after=args.after)
    with target.client() as client:
        plan = make_plan(records, client, key=key, next_try=next_try, on_clear=args.on_clear)

    def open_store(uri: str) -> ObjectStore:
        # The folder that both lie in is there, so that one that isn't mounted is no deleted parent.
        both = [path.removeprefix("file://") for path in (uri, target.uri)]
        shared = os.path.commonpath(both) if all(path.startswith("/") for path in both) else None
        return open_folder(uri, aws_conn_id=target.aws_conn_id, storage_path=shared)

    plan = with_checked_parent(plan, open_store)
    return Answer(
        _data(plan, args.on_clear),
        lambda console: _show(console, plan, on_clear=args.on_clear),
        PROBLEM if plan.is_trouble else OK,
    )


def _check_mine(target: Target, owner: TaskInstanceKey) -> None:
    if target.key is not None and target.key != owner:
        raise ForeignExperiment(
            f"The experiment {target.uri} belongs to another task instance",
            known=f"its owner is {owner}, not {target.key}: a try of yours would be refused",
            change="leave experiment_name out, or put {{ run_id }} into it",
        )


def _all_assumed(plan: Plan, on_clear: str) -> list[str]:
    said = [*plan.next_try.assumed, *plan.assumed]
    if plan.newest is not None:
        said.append("the DAG's parameters and code are those of the newest claim")
    if plan.after == "clear":
        said.append(f"on_clear is {on_clear!r} (--on-clear)")
    return said


def _data(plan: Plan, on_clear: str) -> dict[str, Any]:
    newest, facts = plan.newest, plan.next_try.facts
    point = plan.point
    return {
        "experiment": plan.uri,
        "task": {
            "dag_id": plan.key.dag_id,
            "run_id": plan.key.run_id,
            "task_id": plan.key.task_id,
            "map_index": plan.key.map_index,
            "airflow_state": plan.next_try.airflow_state,
        },
        "next_try": {
            "after": plan.after,
            "is_clear_assumed": plan.is_clear_assumed,
            "try_number": facts.try_number,
            "max_tries": facts.max_tries,
            "clear_number": facts.clear_number,
        },
        "decision": type(plan.decision).__name__,
        "reason": plan.reason,
        "attempt": str(plan.attempt) if plan.attempt else None,
        "newest_attempt": str(newest.claim.ref) if newest else None,
        "newest_job": newest.claim.submission_id if newest else None,
        "restore": {
            "checkpoint": point.candidate.name if point and point.candidate else None,
            "warm_start_from": plan.parent,
            "reason": plan.restore_reason,
            "skipped": [one.model_dump() for one in point.skipped] if point else [],
        },
        "would_fail": plan.is_trouble,
        "failure": str(plan.failure) if plan.failure else None,
        "cluster_refused": str(plan.refused) if plan.refused else None,
        "assumed": _all_assumed(plan, on_clear),
    }


def _show(console: Console, plan: Plan, *, on_clear: str) -> None:
    from rich.table import Table
    from rich.text import Text

    console.print(plan.uri, style="bold", soft_wrap=True)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")

    def row(name: str, text: str, style: str = "") -> None:
        table.add_row(Text(name, style="dim"), Text(text, style=style))

    facts, state = plan.next_try.facts, plan.next_try.airflow_state
    seen = f"; Airflow: {state}" if state else ""
    row("task", str(plan.key))
    when = "if the task is cleared" if plan.is_clear_assumed else f"after a {plan.after}"
    row("next try", f"{facts.try_number}, {when}{seen}")
    attempt = f" {plan.attempt}" if plan.attempt else ""
    row("would", f"{type(plan.decision).__name__}{attempt}", "bold red" if plan.is_trouble else "bold green")
    row("because", f"it would say: {plan.reason}" if plan.is_clear_assumed else plan.reason)
    _show_restore_point(plan, row)
    if plan.failure is not None:
        row("would fail", str(plan.failure), "red")
    if plan.refused is not None:
        row("refused", str(plan.refused), "red")
    for number, text in enumerate(_all_assumed(plan, on_clear)):
        row("" if number else "assumed", text)
    row("", "nothing was written")
    console.print(table)


def _show_restore_point(plan: Plan, row: Any) -> None:
    if plan.point is not None:
        candidate = plan.point.candidate
        values = f" ({wording.metrics(candidate.metrics)})" if candidate and candidate.metrics else ""
        row("from", f"{candidate.name}{values}" if candidate else plan.parent or "the start")
        row("", plan.restore_reason or "")
        for skipped in plan.point.skipped:
            row("passed over", f"{skipped.checkpoint}: {skipped.why}", "yellow")
    elif plan.parent is not None:
        row("from", plan.parent)


restore_plan = command(plan_next_try)
