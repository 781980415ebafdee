"""The driver of one attempt: `python -m airflow_provider.runtime.driver` as the entrypoint of a Ray job.

It may only go on while its claim is the newest. Whatever happens, it leaves an outcome in the bucket if it still may,
and an exit code: 0, EXIT_FAILED, EXIT_CANCELLED or EXIT_SUPERSEDED.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import traceback
import uuid
from functools import partial

from airflow_provider.core import layout
from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.job import EXIT_CANCELLED, EXIT_FAILED, EXIT_SUPERSEDED, TrainingKind
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.manifest import parse_manifest
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import ClaimRecord, CollectedRecord, OutcomeRecord, OutcomeState, Phase
from airflow_provider.runtime.child import ChildContext
from airflow_provider.runtime.claim_watch import ClaimWatch
from airflow_provider.runtime.ending import Ending
from airflow_provider.runtime.failures import failure_of
from airflow_provider.runtime.fit_loop import FitLoop
from airflow_provider.runtime.recorder import complete_quietly
from airflow_provider.runtime.reservations import shortage
from airflow_provider.runtime.scribe import Scribe, utc_now
from airflow_provider.runtime.sigterm import SigtermWatch
from airflow_provider.runtime.spec_file import read_spec, spec_path
from airflow_provider.runtime.speech import say, say_failed
from airflow_provider.runtime.standing import HitKind, Standing
from airflow_provider.runtime.storage import ExperimentStore, open_store, patiently
from airflow_provider.runtime.trainings import Training, choose_training

_START_PATIENCE_S = 120.0
_END_PATIENCE_S = 600.0
"""A finished training is worth waiting for the store to come back."""
_TERM_PATIENCE_S = 1.0
"""Ray kills soon after SIGTERM: three seconds by default, 15 as the operator submits."""


class Driver:
    """One attempt from its first look at the bucket to its outcome."""

    def __init__(self, spec: JobSpec, *, spec_file: str) -> None:
        """Opens the store; nothing is read or written yet."""
        self.spec = spec
        self.store: ExperimentStore = open_store(spec.experiment_uri, spec.storage)
        self.run_uid = uuid.uuid4().hex
        self.is_claim_ours = False
        self.folder = tempfile.mkdtemp(prefix="ray-train-driver-")
        context = ChildContext(
            events_path=f"{self.folder}/events.jsonl",
            failure_path=f"{self.folder}/failure.json",
            spec_path=spec_file,
            is_fenced=True,
        )
        self.standing = Standing(self.store, spec, run_uid=self.run_uid)
        self.scribe = Scribe(self.store, spec, run_uid=self.run_uid, events_path=context.events_path)
        self.ending = Ending(self.store, spec, standing=self.standing, scribe=self.scribe)
        self.training: Training = choose_training(spec, store=self.store, standing=self.standing, context=context)
        self.sigterm = SigtermWatch(self._terminated)
        self.watch = ClaimWatch(
            lambda now: self.standing.look(now=now),
            obey=self.ending.obey,
            now=utc_now,
            deadline=spec.deadline,
            period_s=spec.timings.claim_poll_s,
        )

    def run(self) -> int:
        """Train this attempt; the answer is the process's exit code."""
        try:
            return self._run()
        except RayTrainError as error:
            return self._failed_early(error.failure)

    def _failed_early(self, failure: Failure) -> int:
        """What ends a driver before it trains (no permission, torn record) must not look like a lost node."""
        self.ending.begin()
        try:
            if self.is_claim_ours:
                self.ending.write_outcome(OutcomeState.FAILED, failure, for_s=_TERM_PATIENCE_S)
        except RayTrainError as error:
            say(f"the outcome could not be written: {error}")
        say_failed(failure)
        return EXIT_FAILED

    def _run(self) -> int:
        say(f"attempt {self.spec.ref} of {self.spec.experiment_uri}, job {self.spec.submission_id}")
        patiently(self.store.check_bucket, for_s=_START_PATIENCE_S)
        hit = patiently(lambda: self.standing.first_look(now=utc_now()), for_s=_START_PATIENCE_S)
        if hit is not None:
            self.ending.obey(hit)
        self.is_claim_ours = True
        self.scribe.on_fatal = self.ending.fail
        self.ending.kill_children = self.training.kill
        patiently(self.scribe.start, for_s=_START_PATIENCE_S)
        self.sigterm.arm()
        self.watch.start()
        carried = self._carried_over()
        return self._train() if carried is None else carried

    def _carried_over(self) -> int | None:
        """An earlier attempt of this generation finished and Airflow never learnt it: its outcome becomes ours."""
        earlier = patiently(self._earlier_success, for_s=_START_PATIENCE_S)
        if earlier is None:
            return None
        ref, outcome = earlier
        carried = outcome.model_copy(update={"carried_from": outcome.carried_from or ref})
        say(f"attempt {ref} had finished already: nothing to train")
        self.ending.begin()
        if patiently(self.standing.newer_claim, for_s=_START_PATIENCE_S) is not None:
            self.ending.leave(EXIT_SUPERSEDED)
        patiently(
            lambda: self.store.write_record(layout.outcome(*self.spec.ref.rank), carried), for_s=_START_PATIENCE_S
        )
        self.ending.leave(0)
        return 0

    def _earlier_success(self) -> tuple[AttemptRef, OutcomeRecord] | None:
        g, n = self.spec.ref.rank
        for earlier in range(n - 1, 0, -1):
            outcome = self.store.read_record(OutcomeRecord, layout.outcome(g, earlier))
            if outcome is not None and outcome.state is OutcomeState.SUCCESS and not self._is_trained_on(earlier):
                return AttemptRef(generation=g, attempt=earlier), outcome
        return None

    def _is_trained_on(self, attempt: int) -> bool:
        """Whether this attempt is to train on although that one succeeded.

        A refused success always: giving it back would be refused again. An accepted one only for a person's clear, which
        this claim or one since then answered; a claim without one was decided before the success was accepted.
        """
        collected = self.store.read_record(CollectedRecord, layout.collected(self.spec.ref.generation, attempt))
        if collected is None or collected.accepted is None:
            return False
        return not collected.accepted or self._is_clear_since(attempt)

    def _is_clear_since(self, attempt: int) -> bool:
        """A claim that doesn't say (of an older release) counts as one that answers a clear, as it did then."""
        g, n = self.spec.ref.rank
        claims = (self.store.read_record(ClaimRecord, layout.claim(g, later)) for later in range(n, attempt, -1))
        return any(claim is not None and claim.answers_clear is not False for claim in claims)

    def _train(self) -> int:
        try:
            failure = self._fit()
        except RayTrainError as error:
            failure = error.failure
        except Exception as error:  # process edge: the outcome must say what ended this driver
            traceback.print_exc()
            failure = failure_of(error)
        return self._finish(failure)

    def _fit(self) -> Failure | None:
        if self.spec.training.kind is not TrainingKind.ENTRYPOINT:
            self._connect()
        self.training.prepare()
        import ray

        self.ending.facts.ray_version = ray.__version__
        self.ending.facts.fenced = self.training.is_fenced
        loop = FitLoop(self.store, self.spec, self.scribe, self.ending, self.training, ray.__version__)
        return loop.run()

    def _connect(self) -> None:
        """Join the cluster. Ray replaces a SIGTERM handler that was set before."""
        import ray

        ray.init()
        self.sigterm.arm()
        if self.spec.training.kind is TrainingKind.TRAIN_LOOP:  # a factory's trainer has a scaling config of its own
            scaling = self.spec.training.scaling
            self.scribe.find_shortage = partial(shortage, scaling.worker_resources, num_workers=scaling.least_workers)

    def _terminated(self) -> None:
        """Ray stops the job and kills soon: outcome first, records as far as time allows."""
        self.ending.begin()
        # Ray's stop and a node that shuts down look alike from here: only the job's status STOPPED tells a person's wish.
        kind = FailureKind.INFRASTRUCTURE
        reason, code = "the driver was terminated (SIGTERM) without a stop record of ours", EXIT_CANCELLED
        try:
            hit = self.standing.look(now=utc_now())
            if hit is not None:
                kind, reason, code = FailureKind.STOPPED, hit.reason, hit.exit_code
            if hit is None or hit.kind is not HitKind.SUPERSEDED:
                failure = Failure(kind=kind, reason=reason)
                self.ending.write_outcome(OutcomeState.CANCELLED, failure, for_s=_TERM_PATIENCE_S)
                self.scribe.settle(timeout_s=_TERM_PATIENCE_S)
        except RayTrainError as error:
            say(f"the outcome could not be written: {error}")
        say(f"ending: {reason}")
        self.ending.leave(code)

    def _finish(self, failure: Failure | None) -> int:
        """Complete the records, publish the manifest, write the outcome."""
        # A stop that comes now must not turn a finished training into a cancelled one; Ray leaves us seconds.
        self.sigterm.ignore()
        if failure is None:
            self.ending.begin()  # nor must a deadline that passes while the records are completed
        self.scribe.enter(Phase.FINISHING)
        is_mine = self._close(failure)
        self.watch.stop()
        self.scribe.stop()
        if not is_mine:
            self.ending.leave(EXIT_SUPERSEDED)
        shutil.rmtree(self.folder, ignore_errors=True)
        if failure is None:
            say("outcome: success")
            return 0
        say_failed(failure)
        return EXIT_FAILED

    def _close(self, failure: Failure | None) -> bool:
        self.scribe.settle()
        is_own, generation = self.training.has_own_manifest, self.spec.ref.generation
        published = layout.published_manifest(generation)
        key = layout.manifest(*self.spec.ref.rank) if is_own else published
        body = patiently(lambda: self.store.read(key), for_s=_END_PATIENCE_S)
        if body is not None:
            manifest = parse_manifest(body, key=key)
            self.ending.facts.manifest = manifest
            writer = f"{self.spec.ref.attempt:06d}"
            known = self.scribe.recorder.recorded
            complete_quietly(self.store, self.spec.ref, manifest=manifest, known=known, writer=writer)
            if is_own and patiently(self.standing.newer_claim, for_s=_END_PATIENCE_S) is None:
                patiently(lambda: self.store.write(published, body), for_s=_END_PATIENCE_S)
        state = OutcomeState.SUCCESS if failure is None else OutcomeState.FAILED
        self.ending.begin()
        return self.ending.write_outcome(state, failure, for_s=_END_PATIENCE_S)


def main() -> int:
    """Run the attempt described in the job's package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", default=spec_path(), help="the job's document; default: inside this package")
    spec_file = os.path.abspath(parser.parse_args().spec)
    try:
        spec = read_spec(spec_file)
        driver = Driver(spec, spec_file=spec_file)
        return driver.run()
    except RayTrainError as error:
        say_failed(error.failure)
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
