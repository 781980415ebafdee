"""Hugging Face Transformers on Ray Train: a small vision transformer, trained from scratch on digits that scikit-learn ships.

Nothing here knows of Airflow. A restore is Transformers' own: `resume_from_checkpoint` brings back weights, optimiser,
schedule and epoch.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from typing import Any

import ray.train
import torch
import transformers
from digits import load_data
from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
from ray.train.torch import TorchTrainer


class Rows(torch.utils.data.Dataset):
    """Images of 8 x 8 pixels with their labels, as a vision model of Transformers wants them."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images.view(-1, 1, 8, 8), labels

    def __len__(self) -> int:
        """How many."""
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """One row, under the names that the model's `forward` takes."""
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


def train_loop(config: dict) -> None:
    """Train for `config["epochs"]` epochs, from the restored checkpoint if there is one."""
    torch.set_num_threads(1)
    images, labels, test_images, test_labels = load_data()
    transformers.set_seed(7)
    model = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            image_size=8,
            patch_size=2,
            num_channels=1,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_labels=10,
        )
    )

    def accuracy(predictions: transformers.EvalPrediction) -> dict[str, float]:
        # Digits are learnt in milliseconds; a longer epoch leaves time to break something.
        time.sleep(config.get("epoch_seconds", 0))
        return {"accuracy": float((predictions.predictions.argmax(1) == predictions.label_ids).mean())}

    checkpoint = ray.train.get_checkpoint()
    with (
        tempfile.TemporaryDirectory() as output_dir,
        checkpoint.as_directory() if checkpoint else contextlib.nullcontext() as directory,
    ):
        arguments = transformers.TrainingArguments(
            output_dir=output_dir,
            num_train_epochs=config["epochs"],
            learning_rate=config["lr"],
            per_device_train_batch_size=64,
            per_device_eval_batch_size=360,
            # The report comes with the save, so the metrics must be of the same moment.
            eval_strategy="epoch",
            save_strategy="epoch",
            logging_strategy="epoch",
            save_total_limit=1,
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
        )
        trainer = transformers.Trainer(
            model=model,
            args=arguments,
            train_dataset=Rows(images, labels),
            eval_dataset=Rows(test_images, test_labels),
            compute_metrics=accuracy,
            callbacks=[RayTrainReportCallback()],
        )
        path = os.path.join(directory, RayTrainReportCallback.CHECKPOINT_NAME) if directory else None
        prepare_trainer(trainer).train(resume_from_checkpoint=path)


def make_trainer(run_config: ray.train.RunConfig, train_loop_config: dict[str, Any]) -> TorchTrainer:
    """A factory, for a project that builds its trainer itself: only the run config comes from the operator."""
    return TorchTrainer(
        train_loop,
        train_loop_config=train_loop_config,
        scaling_config=ray.train.ScalingConfig(num_workers=1),
        run_config=run_config,
    )
