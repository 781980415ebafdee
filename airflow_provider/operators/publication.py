"""What a try tells Airflow: links and the listener's record at its start, lineage, result and failure at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.goodput import Goodput, TimeSpent, goodput_sentence, goodput_xcom
from airflow_provider.core.redaction import redact
from airflow_provider.hooks.final_stop import JOB_RECORD_KEY
from airflow_provider.links.ray_train import EXPERIMENT_URL_KEY, JOB_URL_KEY, experiment_url, job_url
from airflow_provider.operators.collecting import has_commit, project_results, read_experiment
from airflow_provider.operators.goodput_metrics import emit_goodput
from airflow_provider.operators.marker import keep_job_record

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk.execution_time.context import TaskStateStoreAccessor
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

    from airflow_provider.operators.request import TrainingRequest
    from airflow_provider.operators.training_try import Submitted
    from airflow_provider.storage.experiment_records import ExperimentRecords

LINEAGE_KEY = "checkpoint_lineage"
FAILURE_KEY = "ray_train_failure"


class Publication:
    """Pushes XComs of one task instance. No value holds a secret: connection ids only."""

    def __init__(self, ti: RuntimeTaskInstanceProtocol, log: Any, *, store: TaskStateStoreAccessor) -> None:
        self._ti, self._log, self._store = ti, log, store
        self._goodput: Goodput | None = None
        self.is_committed: bool | None = None
        """Whether there is a checkpoint to go on from; None while nobody has looked."""

    def experiment(self, request: TrainingRequest, *, identity: str, stop_on_kill: bool) -> None:
        """Before anything is owned: from here on the listener can stop what this try is about to start."""
        record = _record(request, identity, stop_on_kill=stop_on_kill)
        keep_job_record(self._store, record)  # refused: so will be the marker, which ends a replaced process
        self._ti.xcom_push(key=JOB_RECORD_KEY, value=record)
        url = experiment_url(request.uri, endpoint_url=request.storage.endpoint_url)
        self._ti.xcom_push(key=EXPERIMENT_URL_KEY, value=url)

    def job(
        self, request: TrainingRequest, step: Submitted, *, identity: str, stop_on_kill: bool, address: str
    ) -> None:
        """Right after submitting or attaching: the link is visible while the task waits."""
        self._ti.xcom_push(key=JOB_URL_KEY, value=job_url(address, step.submission_id))
        value = _record(request, identity, stop_on_kill=stop_on_kill) | {
            "submission_id": step.submission_id,
            "generation": step.ref.generation,
            "attempt": step.ref.attempt,
        }
        self._ti.xcom_push(key=JOB_RECORD_KEY, value=value)

    def lineage(self, value: dict[str, Any]) -> None:
        """The lineage of the experiment, bounded."""
        self._ti.xcom_push(key=LINEAGE_KEY, value=value)

    def goodput(self, found: Goodput, *, k: int, counted_by: int | None) -> None:
        """The metrics of owner `k`'s try, and the sentence that ends its log; see `_count`."""
        self._count(found, k=k, counted_by=counted_by)
        self._log.info("%s", goodput_sentence(found.total))

    def lineage_of_failure(
        self, records: ExperimentRecords, *, k: int, now: datetime, counted_by: int | None = None, is_over: bool = True
    ) -> None:
        """Lineage and goodput beside a failure: what can't be read or pushed must not replace the failure.

        `is_over=False`: the job trains on, and the try that collects it counts for this one.
        """
        try:
            published = project_results(read_experiment(records, warn=self._log.warning), now=now)
            self.is_committed = has_commit(published.lineage_xcom)
            self._goodput = published.goodput
            if is_over:
                self._count(published.goodput, k=k, counted_by=counted_by)
            self.lineage(published.lineage_xcom)
        except RayTrainError as error:
            self._log.warning("The lineage can't be read now: %s", error)
        except Exception:  # noqa: BLE001 - process edge: XCom may be refused, and the failure must keep its kind
            self._log.exception("The lineage could not be pushed to XCom")

    def _count(self, found: Goodput, *, k: int, counted_by: int | None) -> None:
        """Send the metrics. `counted_by`: the owner that collected this before, and counted then what led to it."""
        spent = found.collected_by(k)
        if counted_by is not None:
            spent = TimeSpent() if counted_by == k else found.of_try(k)
        emit_goodput(spent, total=found.total, ti=self._ti, log=self._log)

    def error(self, error: RayTrainError) -> None:
        """What happened, what is known and what to do, a line each in the log; kind and sentence as an XCom.

        Airflow shows a retry policy's reason nowhere, and an exception's text as one long line.
        """
        lines = [
            error.what,
            f"  Known:  {error.known}" if error.known else "",
            f"  To do:  {error.change}" if error.change else "",
        ]
        self._log.error("%s", redact("\n".join(line for line in lines if line)))
        failure, spent = error.failure, self._goodput.total if self._goodput else None
        value = {
            "kind": failure.kind.value,
            "reason": failure.reason,
            "retryable": failure.is_retryable,
            "goodput": goodput_xcom(spent) if spent else None,
        }
        try:
            self._ti.xcom_push(key=FAILURE_KEY, value=value)
        except Exception:  # noqa: BLE001 - process edge: a failure that can't be shown must still keep its kind
            self._log.exception("The failure could not be pushed to XCom")
        if spent:
            self._log.info("%s", goodput_sentence(spent))


def _record(request: TrainingRequest, identity: str, *, stop_on_kill: bool) -> dict[str, Any]:
    return {
        "conn_id": request.conn_id,
        "aws_conn_id": request.aws_conn_id,
        "experiment": request.uri,
        "dag_run_identity": identity,
        "stop_on_kill": stop_on_kill,
    }
