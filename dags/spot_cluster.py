"""Two recipes for nodes that come and go: spot instances, and a cluster that replaces broken nodes (as HyperPod does).

Each value says why it is what it is; the numbers are for hours of training, shorten them to try. Both need the connections
`ray_default` and `aws_default`, as `resilient_training` does; the elastic one needs Ray 2.60 on the cluster.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider.core.spec import CheckpointConfig, FailureConfig, ScalingConfig
from airflow_provider.operators.ray_train import RayTrainOperator

COMMON: dict[str, Any] = {
    "storage_path": "s3://{{ var.value.get('training_bucket', 'models') }}/spot",
    "train_loop": "spot:train_loop",
    "train_loop_config": {
        "epochs": "{{ params.epochs }}",
        "epoch_seconds": "{{ params.epoch_seconds }}",
        # What a lost node costs is at most this much training, so choose what you can bear to lose, not every epoch: a checkpoint
        # that takes 30 s every 10 minutes costs 5 %.
        "checkpoint_every_s": "{{ params.checkpoint_every_s }}",
        "lr": 0.05,
        "seed": 7,
    },
    "working_dir": "training",
    # The newest may be half written by a node that went; two more are enough to go back to.
    "checkpoint_config": CheckpointConfig(num_to_keep=3),
    # Proves that the loop really went on after each loss, instead of quietly beginning again.
    "progress_metric": "epoch",
    # The driver takes part in no training: on the head, which is no spot node, it outlives all of them.
    "entrypoint_resources": {"node:__internal_head__": 0.001},
    # A collective that waits for ever for a lost peer commits nothing. Several times checkpoint_every_s, and longer than the first
    # epoch with its downloads.
    "stall_timeout_s": 3600.0,
    # The only bound of a training that makes progress; it ends the task, since trying again would not make it faster.
    "timeout_s": timedelta(days=3),
    "poll_interval_s": 2,
}
PARAMS = {
    "epochs": Param(12, type="integer", minimum=1),
    "epoch_seconds": Param(1.0, type="number", minimum=0, description="shortest time of an epoch"),
    "checkpoint_every_s": Param(600.0, type="number", minimum=0),
}


def dag(dag_id: str) -> DAG:
    """A DAG of this file."""
    return DAG(
        dag_id,
        schedule=None,
        catchup=False,
        params=PARAMS,
        render_template_as_native_obj=True,
        tags=["ray", "example"],
        doc_md=__doc__,
    )


with dag("spot_cluster"):
    RayTrainOperator(
        task_id="train",
        # Elastic: goes on with the nodes that are left, and grows again when others come, looked for once a minute. The loop divides
        # the rows by the world's size in each epoch.
        scaling_config=ScalingConfig(num_workers=(1, 2), resources_per_worker={"CPU": 1}),
        failure_config=FailureConfig(
            # Preemptions say nothing about the training: as many as come. An older Ray counts them here -> ...
            max_preemption_failures=-1,
            # -> ... so this one is generous too; a crash that commits nothing in between ends after 3 anyway.
            max_failures=50,
            no_progress_failures=3,
        ),
        # With no spot node to be had, an attempt waits so long, then ends as `capacity`: its place is free for others meanwhile.
        resource_timeout_s=2 * 3600.0,
        # Airflow tries again over about a day: 12 times 2 hours of waiting.
        retries=12,
        retry_delay=timedelta(minutes=5),
        **COMMON,
    )

with dag("replaced_nodes"):
    RayTrainOperator(
        task_id="train",
        # Fixed: the cluster brings a new node for each broken one, so it is better to wait for it than to train with fewer.
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        # A bad node fails again and again until it is replaced: without a commit in between the attempt ends after 3 of its own
        # failures, and the next try gets a new placement. Lost nodes are not counted in those.
        failure_config=FailureConfig(max_failures=20, no_progress_failures=3),
        # Longer than the replacement of a node takes, health checks included.
        resource_timeout_s=3600.0,
        retries=5,
        retry_delay=timedelta(minutes=1),
        **COMMON,
    )
