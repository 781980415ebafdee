"""What the reference says of XCom keys and event fields; tests hold that the code has these keys and no others."""

from __future__ import annotations

_CHECKPOINT = (
    "`uri`, `name` (relative to the experiment), `metrics`, `truncated` (whether some metrics were left out), or None"
)

_GOODPUT = "`fraction`, `wall_s`, `productive_s` and `lost_s` by cause ([goodput](../goodput.md))"

TRAINING = {
    "return_value": "the result, below; after a success only",
    "checkpoint_lineage": "tries, attempts and checkpoints, below; after a success and after a failed attempt",
    "ray_train_job": "from the start of the try on: `experiment`, connection ids, whether a mark stops the job; once submitted or attached "
    "also `submission_id`, `generation`, `attempt`. The listener reads it",
    "ray_train_failure": f"of a try that failed: `kind`, `reason`, `retryable`, `goodput`: {_GOODPUT}, or None where it collected nothing",
    "ray_job_url": "address of the link *Ray job*",
    "experiment_url": "address of the link *Experiment*",
}
RESULT = {
    "state": "`success`",
    "experiment": "URI of the experiment's folder",
    "generation": "generation of the newest attempt",
    "submission_id": "its Ray job",
    "latest_checkpoint": _CHECKPOINT,
    "best_checkpoint": f"the same, by `checkpoint_score_attribute`: {_CHECKPOINT}",
    "attempts": "attempts of this generation",
    "tries": "owner records of the experiment: Airflow tries, and a mark by hand",
    "new_checkpoints": "commits of this generation since its last accepted success",
    "restored_from": "checkpoint that the newest attempt restored, relative to the experiment, or None",
    "warm_started_from": "URI of the warm start's parent, or None",
    "restore_proven": "`yes`, `no` or `unknown`: whether the progress metric went on from the restored checkpoint",
    "fenced": "whether the attempt was fenced; None where its driver left no outcome",
    "goodput": f"of the whole training: {_GOODPUT}",
    "published": "for each asset in `outlets`: `published`, `reason`, `value`, `last`",
}
LINEAGE = {
    "schema_version": "grows when a field changes its meaning",
    "experiment": "URI of the experiment's folder",
    "tries": "one for each owner: `k`, `try_number`, `run_id`, `acted_on`, `final`, `at`",
    "attempts": "one for each claim: `ref` (`g1/a2`), `try_number`, `submission_id`, `intent`, `restored_from`, `warm_started_from`, "
    "`restore_reason`, `state`, `failure_kind`, `failure_reason`, `num_commits`, `num_restarts`, `fenced`, `claimed_at`, `finished_at`",
    "checkpoints": "`name`, `attempt`, `parent`, `state` (`committed`, `pruned`, `quarantined`, `uncommitted`), `metrics`, `metrics_cut`, "
    "`size_bytes`, `reported_at`, `late`",
    "num_checkpoints": "how many the full record has",
    "truncated": "whether something was left out here",
    "full_record": "where all of it is: the experiment's folder",
}
SENSOR = {
    "return_value": "the result, below; of a wait that is done",
    "ray_train_wait": "of any other end: `end`, `reason`, `experiment`",
}
SENSOR_RESULT = {
    "state": "`running`, `success` or `failed`",
    "experiment": "URI of the experiment's folder",
    "generation": "generation of the newest attempt, or None",
    "attempt": "its number within the generation, or None",
    "submission_id": "its Ray job, or None",
    "checkpoint": f"the one that ended the wait: {_CHECKPOINT}",
    "latest_checkpoint": _CHECKPOINT,
    "best_checkpoint": f"the same, once the training has ended: {_CHECKPOINT}",
    "progress": "metrics of `checkpoint` that count up: `epoch`, `step`, ...",
    "attempts": "attempts of the experiment",
    "until": "what was waited for",
    "reason": "why the wait ended",
}
EVENT = {
    "schema_version": "grows when a field changes its meaning",
    "checkpoint": "URI of the checkpoint's folder; None where the training committed none",
    "selected": "`best` by `checkpoint_score_attribute` where that is set, else `latest`",
    "metrics": "what the training reported with this checkpoint",
    "metrics_cut": "whether some were left out for their size",
    "epoch": "the progress metric's value there, else the metric `epoch`, else None",
    "experiment": "URI of the experiment's folder",
    "generation": "generation of the attempt that ended the training",
    "attempt": "its number within the generation",
    "submission_id": "its Ray job",
    "restored_from": "URI of the checkpoint that this attempt restored, or None",
    "dag_id": "whose training it was",
    "run_id": "its DAG run",
    "task_id": "its task",
    "map_index": "its map index; -1 where it is not mapped",
}
