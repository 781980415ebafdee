"""What ended a training: one failure out of many exceptions, wrappers and collateral errors.

Both sides use it: the driver on live exceptions (turned into plain values by `runtime.exceptions`), Airflow on what the
Jobs API says about a job that left no outcome. Records come first; a job's message is only its last ten log lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.failure_rules import Precedence, Rule, SeenError, rule_for
from airflow_provider.core.final_exception import clean, final_chains
from airflow_provider.core.job import EXIT_CANCELLED, EXIT_FAILED, EXIT_SUPERSEDED
from airflow_provider.core.redaction import redact

_MAX_MESSAGE = 400
_MAX_DETAIL = 8000


@dataclass(frozen=True)
class ErrorChain:
    """One rank's error (rank None: the driver's or controller's): the raised exception first, its root cause last."""

    errors: tuple[SeenError, ...]
    rank: int | None = None


@dataclass(frozen=True)
class _Finding:
    chain: ErrorChain
    seen: SeenError
    rule: Rule


def classify_errors(chains: Sequence[ErrorChain], *, detail: str = "") -> Failure:
    """The failure behind a set of exceptions, one chain per failed rank.

    The finding of the smallest precedence wins, the lowest rank among equals. A preempted rank wins over collateral
    errors, as in Ray's own failure policy: surviving ranks routinely fail with aborted collectives, and a real bug
    fires again on the next attempt.
    """
    findings = [_judge(chain) for chain in chains if chain.errors]
    if not findings:
        return Failure(
            kind=FailureKind.INFRASTRUCTURE, reason="the training ended and left no exception", detail=_cut(detail)
        )
    best = min(findings, key=lambda f: (f.rule.precedence, -1 if f.chain.rank is None else f.chain.rank))
    return Failure(
        kind=best.rule.kind,
        reason=_reason(best, findings) + (_where(detail) if best.rule.kind is FailureKind.USER else ""),
        exception_type=best.chain.errors[-1].name if not best.chain.errors[-1].is_context else best.seen.name,
        detail=_cut(detail),
    )


def _judge(chain: ErrorChain) -> _Finding:
    """The error of one chain that tells what happened.

    From the root outwards, the first with a rule of its own. What was only being handled when another was raised
    counts if it is a failure of the surroundings (a lost connection behind a `KeyError`), never if it is code: there,
    `try: ... except ImportError: ...` is everyday.
    """
    for seen in reversed(chain.errors):
        rule = rule_for(seen)
        is_code = rule.kind in (FailureKind.USER, FailureKind.CONFIG)
        if rule.precedence is Precedence.UNSURE or (seen.is_context and is_code):
            continue
        return _Finding(chain, seen, rule)
    return _Finding(chain, chain.errors[0], rule_for(chain.errors[0]))


def _reason(best: _Finding, findings: Sequence[_Finding]) -> str:
    text = _say(best.seen)
    raised = best.chain.errors[0]
    if raised != best.seen and _say(raised) != text and raised.message:
        text = f"{text}, raised as {_say(raised)}"
    same = [
        f.chain.rank
        for f in findings
        if f.chain.rank is not None and f.seen.name == best.seen.name and f.rule == best.rule
    ]
    if best.chain.rank is not None and len(findings) > 1:
        where = f"rank {best.chain.rank}" if len(same) == 1 else f"{len(same)} ranks, first rank {best.chain.rank}"
        text = f"{text} on {where} (of {len(findings)} that failed)"
    return f"{text}: {best.rule.advice}" if best.rule.advice else text


def _where(traceback_text: str) -> str:
    """` (training/loop.py:28 in train_loop)`: the author's own frame nearest to the error, or nothing."""
    frames = [m for m in _FRAME.finditer(clean(traceback_text)) if not _LIBRARY.search(m["path"])]
    if not frames:
        return ""
    last = frames[-1]
    # Ray unpacks a package under a long name of its own; the author knows what follows it.
    path = re.sub(r"^.*?/_ray_pkg_[0-9a-f]+/", "", last["path"])
    return f" ({path}:{last['line']} in {last['function']})"


def _say(seen: SeenError) -> str:
    message = " ".join(redact(seen.message).split())
    if len(message) > _MAX_MESSAGE:
        message = f"{message[: _MAX_MESSAGE // 2]} ... {message[-_MAX_MESSAGE // 2 :]}"
    return f"{seen.name}: {message}" if message else seen.name


def _cut(detail: str) -> str:
    """The end of a text: exceptions stand there."""
    return redact(clean(detail))[-_MAX_DETAIL:]


# --- what the Jobs API says --------------------------------------------------------------------------------------

_EXITS: dict[int, tuple[FailureKind, str]] = {
    EXIT_SUPERSEDED: (FailureKind.SUPERSEDED, "a newer attempt owns the experiment and this driver ended itself"),
    EXIT_CANCELLED: (FailureKind.STOPPED, "the driver obeyed a stop record, a final owner or its deadline"),
    137: (
        FailureKind.OUT_OF_MEMORY,
        "the driver was killed by SIGKILL: possibly for memory (the kernel's or the container's limit), possibly by someone",
    ),
    143: (FailureKind.INFRASTRUCTURE, "the driver was terminated by SIGTERM from outside"),
    130: (FailureKind.STOPPED, "the driver was interrupted by SIGINT"),
    139: (FailureKind.INFRASTRUCTURE, "the driver crashed with a segmentation fault"),
    134: (FailureKind.INFRASTRUCTURE, "the driver aborted"),
    135: (FailureKind.INFRASTRUCTURE, "the driver crashed with a bus error (shared memory full?)"),
    127: (FailureKind.CONFIG, "the entrypoint's command was not found on the cluster"),
    126: (FailureKind.CONFIG, "the entrypoint's command is not executable on the cluster"),
    2: (FailureKind.USER, "the entrypoint refused its arguments (exit code 2 of argparse and shells)"),
}
_ERROR_TYPES: dict[str, tuple[FailureKind, str]] = {
    "RUNTIME_ENV_SETUP_FAILURE": (FailureKind.CONFIG, "the runtime environment can't be built"),
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT": (FailureKind.CAPACITY, "the cluster did not start the job in time"),
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE": (FailureKind.CAPACITY, "the cluster can't place the job"),
    "JOB_SUPERVISOR_ACTOR_START_FAILURE": (FailureKind.INFRASTRUCTURE, "the job's supervisor did not start"),
    "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE": (FailureKind.INFRASTRUCTURE, "the job's supervisor failed"),
    "JOB_SUPERVISOR_ACTOR_DIED": (FailureKind.INFRASTRUCTURE, "the job's supervisor died with its node or process"),
    "JOB_ENTRYPOINT_COMMAND_START_ERROR": (FailureKind.CONFIG, "the entrypoint can't be started"),
}
_FRAME = re.compile(r'^\s*File "(?P<path>[^"\n]+)", line (?P<line>\d+), in (?P<function>\S+)', re.MULTILINE)
_LIBRARY = re.compile(r"/site-packages/|/dist-packages/|/lib/python\d|airflow_provider/runtime/|^<")
_DRIVER_SAYS = re.compile(r"^\[ray-train\] failed: (?P<reason>.*) \[(?P<kind>[a-z_]+)\]$", re.MULTILINE)
_KINDS = frozenset(kind.value for kind in FailureKind)
# What fails while a runtime environment is built and has nothing to do with what was asked for.
_ENV_TRANSIENT = re.compile(
    r"Temporary failure in name resolution|Connection (?:timed out|reset|refused)|Read timed out|Max retries exceeded"
    r"|HTTP error 5\d\d|gcs://\S+ (?:.*)?(?:not found|expired|does not exist)|Failed to download runtime_env file package"
)


def classify_job(status: str, error_type: str | None, exit_code: int | None, message: str) -> Failure:
    """The failure of a job that left no outcome record, from the Jobs API's fields.

    `status` is Ray's: PENDING means that the caller gave up waiting. Raises ValueError for a job that did not fail.
    Words in the middle of a log decide nothing; only the final exception does.
    """
    text = clean(message)
    if status == "STOPPED":
        return _job_failure(FailureKind.STOPPED, "the job was stopped", text)
    if status == "PENDING":
        return _job_failure(FailureKind.CAPACITY, f"the job did not start: {_last_line(text)}", text)
    if status != "FAILED":
        raise ValueError(f"a job in state {status} has not failed")
    if error_type is None and text.lower().startswith("runtime_env setup failed"):
        error_type = "RUNTIME_ENV_SETUP_FAILURE"  # Ray before error types
    if error_type in _ERROR_TYPES:
        kind, what = _ERROR_TYPES[error_type]
        if error_type == "RUNTIME_ENV_SETUP_FAILURE" and _ENV_TRANSIENT.search(text):
            kind = FailureKind.NETWORK
        return _job_failure(kind, f"{what}: {_last_line(text)}", text)
    return _classify_exit(exit_code, text)


def _classify_exit(exit_code: int | None, text: str) -> Failure:
    # A process that ends by a signal reports -n when exec'd and 128 + n under a shell.
    code = 128 - exit_code if exit_code is not None and exit_code < 0 else exit_code
    if code == EXIT_FAILED and (said := _said_by_driver(text)) is not None:
        return said
    if code in _EXITS:
        kind, what = _EXITS[code]
        return _job_failure(kind, f"{what} (exit code {exit_code})", text)
    chains = [ErrorChain(errors, rank) for rank, errors in final_chains(text)]
    if chains:
        return classify_errors(chains, detail=text)
    if code is not None and code > 128:
        return _job_failure(
            FailureKind.INFRASTRUCTURE, f"the driver was killed by signal {code - 128} (exit code {exit_code})", text
        )
    seen = f"exit code {exit_code}" if exit_code is not None else "no exit code"
    return _job_failure(
        FailureKind.INFRASTRUCTURE,
        f"the job failed with {seen}, no outcome record and no exception in its last log lines",
        text,
    )


def _said_by_driver(text: str) -> Failure | None:
    """Our driver's own last word, where it could not write an outcome."""
    for match in reversed(list(_DRIVER_SAYS.finditer(text))):
        if match["kind"] in _KINDS:
            return _job_failure(FailureKind(match["kind"]), match["reason"], text)
    return None


def _job_failure(kind: FailureKind, reason: str, text: str) -> Failure:
    return Failure(kind=kind, reason=redact(reason), detail=_cut(text))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-_MAX_MESSAGE:] if lines else "no message"
