"""A sweep in TaskFlow: one training per learning rate, each an experiment of its own, and the best of them picked.

The function `train` is an ordinary Ray Train loop, written in this file. It runs on the cluster with what it uses of the
file; clearing one map index trains that one again and touches no other. At most two jobs run at once.

Needs the connections `ray_default` and `aws_default` (`make stack` has both) and a bucket named by the Airflow Variable or
environment variable `AIRFLOW_VAR_TRAINING_BUCKET`, `models` by default.
"""

from __future__ import annotations

import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param, dag, task

from airflow_provider.core.spec import CheckpointConfig, FailureConfig, ScalingConfig

if TYPE_CHECKING:
    import torch

NUM_PIXELS, NUM_DIGITS = 64, 10
TEST_EVERY = 5
"""Each fifth image is kept for the test."""


def load_digits(share: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n x 64, scaled to 0..1) of scikit-learn's handwritten digits, with their labels."""
    import sklearn.datasets
    import torch

    digits = sklearn.datasets.load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    return images[share], torch.tensor(digits.target, dtype=torch.long)[share]


@dag(
    schedule=None,
    catchup=False,
    params={
        "epochs": Param(8, type="integer", minimum=1),
        "epoch_seconds": Param(0.5, type="number", minimum=0, description="shortest time of an epoch"),
    },
    render_template_as_native_obj=True,
    tags=["ray", "example"],
    doc_md=__doc__,
)
def taskflow_sweep() -> None:
    """Choose learning rates, train with each, pick the best."""

    @task
    def learning_rates() -> list[float]:
        return [0.01, 0.2]

    @task.ray_train(
        storage_path="s3://{{ var.value.get('training_bucket', 'models') }}/sweep",
        scaling_config=ScalingConfig(num_workers=1),
        failure_config=FailureConfig(max_failures=20),
        checkpoint_config=CheckpointConfig(num_to_keep=3, checkpoint_score_attribute="accuracy"),
        progress_metric="epoch",
        poll_interval_s=2,
        retries=3,
        retry_delay=timedelta(seconds=1),
        max_active_tis_per_dagrun=2,
    )
    def train(lr: float, epochs: int, *, epoch_seconds: float = 0.0, seed: int = 7) -> None:
        """One linear layer; the optimiser's state and the next epoch are in each checkpoint."""
        import ray.train
        import torch

        torch.manual_seed(seed)
        model = torch.nn.Linear(NUM_PIXELS, NUM_DIGITS)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        first_epoch = 0
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is not None:
            with checkpoint.as_directory() as directory:
                state = torch.load(Path(directory, "state.pt"), weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            first_epoch = state["epoch"] + 1
        images, labels = load_digits(slice(1, None, TEST_EVERY))
        test_images, test_labels = load_digits(slice(0, None, TEST_EVERY))
        for epoch in range(first_epoch, epochs):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            # Digits are learnt in milliseconds; a longer epoch leaves time to break something.
            time.sleep(epoch_seconds)
            accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
            with tempfile.TemporaryDirectory() as directory:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, Path(directory, "state.pt"))
                ray.train.report(
                    {"epoch": epoch, "lr": lr, "loss": loss.item(), "accuracy": accuracy},
                    checkpoint=ray.train.Checkpoint.from_directory(directory),
                )

    @task
    def pick_best(results: list[dict[str, Any]]) -> dict[str, Any]:
        """Compare what the trainings returned: small dicts, the checkpoints stay in the bucket."""
        best = max((result["best_checkpoint"] for result in results), key=lambda found: found["metrics"]["accuracy"])
        return {"uri": best["uri"], **best["metrics"]}

    trained = train.partial(epochs="{{ params.epochs }}", epoch_seconds="{{ params.epoch_seconds }}").expand(
        lr=learning_rates()
    )
    pick_best(trained)


taskflow_sweep()
