"""The product's own decisions, asked with the model's facts: the exploration tests the code and no paraphrase of it.

Each answer is kept under an abstract key of the facts, so a million states cost some thousand calls.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from airflow_provider.client.values import JobInfo
from airflow_provider.core import decision as core
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.job import EXIT_FAILED, JobStatus
from airflow_provider.core.kill import KillFacts, decide_kill
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import OutcomeRecord, OutcomeState
from airflow_provider.core.waiting import GoOn, WaitLimits, WaitState, judge_poll
from airflow_provider.operators.collecting import Ended, conclude_attempt
from airflow_provider.operators.session import TrainingSession
from tests.support import records as make

NOW = make.NOW
FRESH_S, STALE_S = 5.0, 500.0
OWN_K = 9
"""Only whether an owner number is one's own counts for the decision, not which."""


class Counters(NamedTuple):
    """What Airflow tells a process, or an owner record says."""

    identity: int
    number: int
    max_tries: int
    clear_number: int


class Facts(NamedTuple):
    """What the single reads of a try found about the newest attempt, as far as any rule asks."""

    generation: int
    number: int
    session: int
    acting: Counters
    is_own: bool
    has_stops: bool
    has_final: bool
    is_alive: bool
    is_fresh: bool
    has_manifest: bool
    outcome: str
    filled: str
    is_collected: bool
    is_accepted: bool
    sight: str
    """A job status, "" for a 404, "silent" for no answer."""
    session_now: int


class Answer(NamedTuple):
    """A decision as the steps of a try need it."""

    kind: str
    target: tuple[int, int] | None
    is_retryable: bool
    reason: str
    answers_clear: bool = False


@cache
def decide(me: Counters, newest: Facts | None, on_clear: str) -> Answer:
    """`core.decision.decide_submission` on real records."""
    facts = core.TryFacts(
        dag_run_identity=f"i{me.identity}",
        try_number=me.number,
        max_tries=me.max_tries,
        clear_number=me.clear_number,
        own_ks=frozenset({OWN_K}),
    )
    attempt = None if newest is None else _attempt(newest)
    decision = core.decide_submission(
        facts,
        attempt,
        on_clear=on_clear,  # type: ignore[arg-type]
        spec_digest="s",
        code_digest="c",
        now=NOW,
    )
    kind = type(decision).__name__
    if isinstance(decision, core.Refuse):
        kind = "Superseded" if decision.failure.kind is FailureKind.SUPERSEDED else kind
        return Answer(kind, None, decision.failure.is_retryable, decision.failure.reason)
    target = decision.next_ref if isinstance(decision, core.StopThenRestore) else decision.ref
    answers_clear = getattr(decision, "answers_clear", False)
    return Answer(kind, target.rank, False, decision.reason, answers_clear)


def _attempt(f: Facts) -> core.AttemptFacts:
    k = OWN_K if f.is_own else 1
    return core.AttemptFacts(
        claim=make.claim(f.generation, f.number, session_name=f"s{f.session}"),
        acting_owner=make.owner(
            k,
            dag_run_identity=f"i{f.acting.identity}",
            try_number=f.acting.number,
            max_tries=f.acting.max_tries,
            clear_number=f.acting.clear_number,
        ),
        job=sight(f.sight, f.session_now),
        stops=frozenset({1}) if f.has_stops else frozenset(),
        has_final_stop=f.has_final,
        alive=make.alive() if f.is_alive else None,
        alive_age_s=(FRESH_S if f.is_fresh else STALE_S) if f.is_alive else None,
        has_manifest=f.has_manifest,
        outcome=_outcome(f.outcome),
        collected=_collected(f.filled, is_accepted=f.is_accepted) if f.is_collected else None,
    )


def sight(status: str, session: int) -> core.JobSight:
    if status == "silent":
        return core.ClusterSilent("timed out")
    return core.JobSeen(JobStatus(status)) if status else core.JobUnknown(f"s{session}")


def _outcome(word: str) -> OutcomeRecord | None:
    """The driver's word as `Ending` and `Driver._terminated` write it; a filled one carries the failure's kind."""
    if not word:
        return None
    if word == "success":
        return make.outcome()
    kind = {"stopped": FailureKind.STOPPED, "terminated": FailureKind.INFRASTRUCTURE}.get(word)
    state = OutcomeState.FAILED if kind is None else OutcomeState.CANCELLED
    failure = make.Failure(kind=kind or FailureKind(word), reason=f"it was {word}")
    return make.outcome(state.value, failure=failure)


def _collected(filled: str, *, is_accepted: bool) -> Any:
    return make.collected(True if is_accepted else None, outcome=_outcome(filled))


@cache
def is_wait_over(status: str, session_now: int, session: int, *, is_fresh: bool, has_outcome: bool) -> str:
    """`core.waiting.judge_poll` after the limits have passed; "" means that the wait goes on."""
    seen = sight(status, session_now)
    rest: dict[str, Any] = {
        "limits": WaitLimits(pending_timeout_s=None),
        "session_name": f"s{session}",
        "alive_age_s": FRESH_S if is_fresh else None,
        "is_outcome_there": has_outcome,
    }
    first = judge_poll(WaitState(since=NOW), seen, now=NOW, **rest)
    if isinstance(first, GoOn):
        long_ago = WaitState(since=NOW - timedelta(hours=9), sight=first.state.sight, polls=99)
        first = judge_poll(long_ago, seen, now=NOW, **rest)
    return "" if isinstance(first, GoOn) else first.end.value


@cache
def is_kill_a_stop(*, state: str | None, is_owner: bool | None, is_timed_out: bool) -> bool:
    """`core.kill.decide_kill`."""
    facts = KillFacts(AttemptRef(generation=1, attempt=1), k=1, newest=1 if is_owner else 2)
    return decide_kill(facts, task_state=state, is_timed_out=is_timed_out, is_enabled=True).is_stop


class End(NamedTuple):
    """How an attempt ended, as `collect` concludes."""

    what: str
    """over, success, "taken away" or failed."""
    is_retryable: bool = False
    filled: str = ""
    """The outcome that collect has to write, since the driver left none."""
    reason: str = ""


class _Records:
    """An attempt's folder as it was read, behind the two methods that `conclude_attempt` uses."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def read_attempt(self, _ref: AttemptRef) -> Any:
        return self.found

    def manifest(self, _ref: AttemptRef) -> None:
        return None

    def restored(self, _ref: AttemptRef) -> None:
        return None


class _Client:
    def __init__(self, job: JobInfo | None, *, is_silent: bool) -> None:
        self.job, self.is_silent = job, is_silent

    def get_job(self, _submission_id: str) -> JobInfo | None:
        if self.is_silent:
            from airflow_provider.core.errors import ClusterUnreachable

            raise ClusterUnreachable("timed out")
        return self.job


@cache
def conclude(outcome: str, filled: str, *, status: str, exit_code: int, has_stops: bool, has_older_stops: bool) -> End:
    """`collecting.conclude_attempt`, then the session's `_was_taken_away`. None of ours stops a job outside Airflow."""
    from airflow_provider.core.errors import RayTrainError

    stops = (1,) if has_older_stops else (OWN_K,) if has_stops else ()
    found = SimpleNamespace(
        outcome=_outcome(outcome),
        collected=SimpleNamespace(record=_collected(filled, is_accepted=False)) if filled else None,
        stops=stops,
    )
    client = _Client(_job(status, exit_code), is_silent=status == "silent")
    try:
        ended = conclude_attempt(
            _Records(found),  # type: ignore[arg-type]
            client,  # type: ignore[arg-type]
            ref=make.ref(1, 1),
            submission_id="job",
            now=datetime(2026, 11, 29, tzinfo=timezone.utc),
        )
    except RayTrainError as error:
        return End("failed", error.failure.is_retryable, reason=error.what)
    if ended is None:
        return End("not over")
    return _end(ended)


def _end(ended: Ended) -> End:
    failure = ended.outcome.failure
    filled = "" if ended.is_recorded else (failure.kind.value if failure else "success")
    if ended.outcome.state is OutcomeState.SUCCESS:
        return End("success", filled=filled)
    session: Any = SimpleNamespace(attempt=SimpleNamespace(k=OWN_K))
    if TrainingSession._was_taken_away(session, ended):
        return End("taken away", filled=filled)
    assert failure is not None
    return End("failed", failure.is_retryable, filled, failure.reason)


def _job(status: str, exit_code: int) -> JobInfo | None:
    if status in ("", "silent"):
        return None
    return JobInfo(
        submission_id="job",
        status=JobStatus(status),
        driver_exit_code=exit_code if status == "FAILED" else None,
        message="driver ended" if exit_code == EXIT_FAILED else "",
        metadata={},
    )
