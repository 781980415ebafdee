"""One try, from owning the experiment to a job that somebody can wait for: read facts, decide, act, record.

The decision is `core.decision.decide_submission`; this class does its reading and carries it out, in the order that
the protocol demands: own, then marker; claim, then owners again, then POST.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_provider.client.values import JobRequest
from airflow_provider.core.decision import (
    Attach,
    AttemptFacts,
    Collect,
    Decision,
    Finished,
    JobSeen,
    JobSight,
    JobUnknown,
    Refuse,
    Repost,
    Restore,
    Start,
    StopThenRestore,
    decide_submission,
)
from airflow_provider.core.errors import NoUsableCheckpoint, RayJobFailed, RayTrainError, Superseded
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.identity import submission_id
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import ClaimRecord
from airflow_provider.core.restore import policy_of_attempt
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.hooks.job_package import code_digest, code_package, runtime_env, runtime_package
from airflow_provider.hooks.stop import stop_attempt
from airflow_provider.operators.attempt_facts import look_at_job, read_facts
from airflow_provider.operators.ownership import Ownership
from airflow_provider.storage.restore_scan import has_committed, scan_restore_point

if TYPE_CHECKING:
    from airflow_provider.client.jobs_client import SyncJobsClient
    from airflow_provider.client.values import Package
    from airflow_provider.operators.warm_start import WarmStarter
    from airflow_provider.storage.experiment_records import AttemptRecords

MAX_ROUNDS = 6
"""Decisions within one try before it gives up: each further one needs another process acting in between."""
ENDED_STATES = frozenset({"failed", "success", "skipped", "removed", "restarting", "upstream_failed"})
"""A person, or Airflow itself, ended or restarted the task under this process."""
MAX_ATTEMPTS_PER_OWNER = 5
"""Attempts that one owner may claim: each further one means that its job was taken away or could not see the claim."""
STOP_WAIT_S = 60.0
"""How long a stopped job may take to end before the next attempt is claimed (its claim fences what is left)."""


@dataclass(frozen=True)
class Submitted:
    """There is a job to wait for."""

    ref: AttemptRef
    submission_id: str
    session_name: str | None
    deadline: datetime | None
    reason: str


@dataclass(frozen=True)
class Over:
    """The attempt is over: collect it (or publish it again)."""

    ref: AttemptRef
    submission_id: str
    reason: str


class _OwnedAgain(Exception):
    """Another owner appeared before the POST and this try owned again: decide anew."""


@dataclass(kw_only=True)
class TrainingTry(Ownership):
    """The steps of one try, from owning the experiment to a job."""

    client: SyncJobsClient
    warm_starter: WarmStarter | None = None
    """Finds and keeps the parent of a generation; None: nobody asked for a warm start."""
    task_state: Callable[[], str | None] = lambda: None
    """Airflow's present word on the task, None where it can't be read."""
    sleep: Callable[[float], None] = time.sleep
    current: Submitted | None = None
    """The job this try answers for, from its claim on; what on_kill stops."""
    forbidden: str | None = None
    """Why nothing may be submitted any more; set by on_kill while there is no job yet."""
    _packed: tuple[Package | None] | None = None
    _newest: AttemptRecords | None = None
    _refused: RayTrainError | None = None
    """What the dashboard refused in the last look at a job; raised where the decision needs an answer."""

    def step(self) -> Submitted | Over:
        """Decide and act until there is a job to wait for or a result to collect. Raises typed errors."""
        for _ in range(MAX_ROUNDS):
            newest = self.read_newest()
            decision = self.decide(newest)
            if isinstance(decision, Refuse):
                raise self._why_refused(decision)
            self.log(decision.reason)
            result = self._act(decision, newest)
            if result is not None:
                return result
        raise RayTrainError(
            f"Nothing could be decided in {MAX_ROUNDS} rounds", known="other processes kept claiming in between"
        )

    def _why_refused(self, decision: Refuse) -> RayTrainError:
        """Where nothing could be decided for the cluster's silence, what it refused us says more than "no answer"."""
        if self._refused is not None and decision.failure.kind is FailureKind.NETWORK:
            return self._refused
        if decision.failure.kind is FailureKind.SUPERSEDED:
            return Superseded(
                "Airflow has replaced this process",
                known=decision.failure.reason,
                change="nothing, unless the task instance was deleted and made anew: clear it then",
            )
        return RayJobFailed(decision.failure.reason, failure=decision.failure)

    def decide(self, newest: AttemptFacts | None) -> Decision:
        """The pure decision on what was read."""
        return decide_submission(
            self.facts,
            newest,
            on_clear=self.request.on_clear,
            spec_digest=self.request.spec_digest,
            # Packing the author's code may fail; only a job that never arrived needs it for the decision.
            code_digest=self._code_digest() if newest and isinstance(newest.job, JobUnknown) else "",
            now=self.now(),
        )

    def is_newest(self, ref: AttemptRef) -> bool:
        """Whether no other attempt was claimed after this one; if one was, all must be decided again."""
        newest = self.records.newest_claim()
        return newest is not None and newest.ref == ref

    def read_newest(self) -> AttemptFacts | None:
        """All facts about the newest claim, or None; see `read_facts`."""
        self._newest, facts = read_facts(self.records, self.sight, known=self._known)
        return facts

    def sight(self, job_id: str) -> JobSight:
        """What the cluster says about a job; see `look_at_job`."""
        seen, self._refused = look_at_job(self.client, job_id)
        return seen

    def _act(self, decision: Decision, newest: AttemptFacts | None) -> Submitted | Over | None:
        match decision:
            case Collect() | Finished():
                self.current = None  # its job is over: nothing of it is left to stop
                self.acted_on(decision.ref, decision.submission_id)
                return Over(decision.ref, decision.submission_id, decision.reason)
            case Attach():
                self._check_not_forbidden()
                claim = newest.claim if newest else None
                self.acted_on(decision.ref, decision.submission_id)
                return self._submitted(decision, claim)
            case Repost():
                self.acted_on(decision.ref, decision.submission_id)
                claim = newest.claim if newest else None
                return self._submit(claim, reason=decision.reason) if claim else None
            case StopThenRestore():
                if not self._stop(decision):
                    return None
                return self._claim_and_submit(decision.next_ref, decision)
            case Start() | Restore():
                return self._claim_and_submit(decision.ref, decision)
        raise AssertionError(decision)

    def _submitted(self, decision: Attach, claim: ClaimRecord | None) -> Submitted:
        self.current = Submitted(
            ref=decision.ref,
            submission_id=decision.submission_id,
            session_name=claim.session_name if claim else None,
            deadline=claim.deadline if claim else None,
            reason=decision.reason,
        )
        return self.current

    def _stop(self, decision: StopThenRestore) -> bool:
        """Stop the live job; False if another owner appeared and all must be decided again."""
        if not self.is_owner():
            return False
        result = stop_attempt(
            self.records,
            self.client,
            ref=decision.ref,
            submission_id=decision.submission_id,
            k=self.k,
            reason=decision.reason,
        )
        self.log(result.reason)
        if result.is_sent:
            self.wait_until_over(decision.submission_id)
            if self._newest is not None:
                # On its way out the driver may have committed, and its retention deleted what was the newest before.
                self._newest = replace(self._newest, manifest=self.records.manifest(decision.ref))
        return result.is_sent

    def wait_until_over(self, job_id: str) -> None:
        """Give the driver time to complete its records. A PENDING job is not waited for: Ray ignores its stop."""
        waited = 0.0
        while waited < STOP_WAIT_S:
            sight = self.sight(job_id)
            if not isinstance(sight, JobSeen) or sight.status.is_terminal or sight.status.value == "PENDING":
                return
            self.sleep(1.0)
            waited += 1.0
        self.log(f"job {job_id} did not end within {STOP_WAIT_S:.0f} s; the next claim fences it")

    def _claim_and_submit(self, ref: AttemptRef, decision: Start | Restore | StopThenRestore) -> Submitted | None:
        """Check the restore point before GPUs are taken, claim, submit; None after a lost race."""
        self._check_not_endless()
        before = self._newest.claim if self._newest and ref.attempt > 1 else None
        policy = self._policy(before, answers_clear=decision.answers_clear)
        point = scan_restore_point(self.records, ref=ref, policy=policy, newest=self._newest, warn=self.log)
        if point is not None:
            has_parent = self.warm_starter is not None or (before is not None and before.warm_start is not None)
            is_open = point.candidate is None and has_parent  # the warm start says next where it begins
            self.log(f"nothing of this generation to restore: {point.why_nothing}" if is_open else point.reason)
            for skipped in point.skipped:
                self.log(f"checkpoint {skipped.checkpoint} can't be restored: {skipped.why}")
        has_own = point is not None and point.candidate is not None
        warm_start = before.warm_start if before else None
        if self.warm_starter is not None:
            warm_start = self.warm_starter.decide(before=before, has_own=has_own)
        now = self.now()
        timeout_s = self.request.timeout_s
        claim = ClaimRecord(
            k=self.k,
            generation=ref.generation,
            attempt=ref.attempt,
            submission_id=submission_id(self.request.uri, self.request.key, ref),
            address=str(self.client.address),
            session_name=self.client.version().session_name,
            try_number=self.facts.try_number,
            intent=decision.reason,
            answers_clear=decision.answers_clear,
            restore_policy=policy,
            asked_before=self.request.restore if policy != self.request.restore else None,
            warm_start=warm_start,
            checkpoint_seen=point.candidate.name if point and point.candidate else None,
            spec_digest=self.request.spec_digest,
            code_digest=self._code_digest(),
            deadline=now + timedelta(seconds=timeout_s) if timeout_s else None,
            created_at=now,
        )
        if not self.records.create_claim(claim):
            self.log(f"another process claimed {ref} first: deciding again")
            self.is_owner()
            return None
        # Claiming counts as acting, so the own owner record needs no update here.
        return self._submit(claim, reason=decision.reason)

    def _policy(self, before: ClaimRecord | None, *, answers_clear: bool) -> RestorePolicy:
        asked = self.request.restore
        if asked.mode != "explicit":
            return asked
        if before is None or self._newest is None:
            raise NoUsableCheckpoint(
                f"restore names {asked.checkpoint}, and this training has no attempt yet that could have committed it",
                known="a name counts within one training; nothing was claimed, submitted or overwritten",
                change="take restore out; to begin a new training from another one's checkpoint use warm_start",
            )
        is_gone_on = has_committed(self.records, self._newest)
        policy = policy_of_attempt(asked, before=before, has_committed=is_gone_on, answers_clear=answers_clear)
        if policy != asked:
            self.log(
                f"restore names {asked.checkpoint}; this is a retry, which goes on from what was committed under it"
            )
        return policy

    def _check_not_endless(self) -> None:
        """Raise where this owner has claimed attempt after attempt: going on would post jobs for ever."""
        own = 0
        claim = self._newest.claim if self._newest else None
        while claim is not None and claim.k == self.k:
            own += 1
            if own >= MAX_ATTEMPTS_PER_OWNER:
                raise RayTrainError(
                    f"{own} jobs of this try ended without a word, each taken away or superseded",
                    known=f"the last is {claim.submission_id}, attempt {claim.ref}",
                    change="read its log; check that the cluster sees the same bucket and endpoint as Airflow",
                )
            if claim.attempt == 1:
                return
            claim = self.records.claim(AttemptRef(generation=claim.generation, attempt=claim.attempt - 1))

    def _submit(self, claim: ClaimRecord, *, reason: str) -> Submitted | None:
        spec = JobSpec(
            experiment_uri=self.request.uri,
            storage=self.request.storage,
            ref=claim.ref,
            k=claim.k,
            submission_id=claim.submission_id,
            restore=claim.restore_policy,
            warm_start=claim.warm_start,
            deadline=claim.deadline,
            training=self.request.training,
            timings=self.request.timings,
        )
        code, runtime = self._code(), runtime_package(spec, more=self.request.function_files)
        job = JobRequest(
            submission_id=claim.submission_id,
            entrypoint=self.request.command,
            metadata=self._metadata(claim),
            runtime_env=runtime_env(self.request.runtime_env, spec=spec, runtime=runtime, code=code),
            entrypoint_num_cpus=self.request.entrypoint_num_cpus,
            entrypoint_num_gpus=self.request.entrypoint_num_gpus,
            entrypoint_resources=self.request.entrypoint_resources,
        )
        packages = [p for p in (runtime, code) if p is not None]
        # A kill or time-out while the POST is on its way must find the job: its answer may never come.
        self.current = Submitted(claim.ref, claim.submission_id, claim.session_name, claim.deadline, reason)
        try:
            outcome = self.client.submit_or_find(job, packages=packages, before_post=self._check_before_post)
        except _OwnedAgain:
            return None
        self.log(outcome.reason)
        return self.current

    def _check_before_post(self) -> None:
        """Between claim and every POST: a newer owner means no POST, and so does a person who ended the task meanwhile."""
        self._check_not_forbidden()
        # A mark that came before our owner record existed reached no listener; one that comes later finds it.
        state = self.task_state()
        if state in ENDED_STATES:
            raise Superseded("Nothing is submitted any more", known=f"Airflow says that the task is {state}")
        if not self.is_owner():
            raise _OwnedAgain

    def _check_not_forbidden(self) -> None:
        if self.forbidden is not None:
            raise Superseded("Nothing is submitted or waited for any more", known=self.forbidden)

    def _metadata(self, claim: ClaimRecord) -> dict[str, str]:
        key = self.request.key
        return {
            "airflow_dag_id": key.dag_id,
            "airflow_run_id": key.run_id,
            "airflow_task_id": key.task_id,
            "airflow_map_index": str(key.map_index),
            "experiment": self.request.uri,
            "attempt": str(claim.ref),
        }

    def _code_digest(self) -> str:
        return code_digest(self._code(), more=self.request.function_files)

    def _code(self) -> Package | None:
        if self._packed is None:
            self._packed = (code_package(self.request.working_dir, dag_folder=self.request.dag_folder),)
        return self._packed[0]
