"""PyTorch Lightning on Ray Train: rows from Ray Data, a checkpoint each epoch by Ray's own callback.

Nothing here knows of Airflow. A restore is Lightning's own: `ckpt_path` brings back weights, optimiser and epoch.
"""

from __future__ import annotations

import contextlib
import os
import time

import lightning
import ray.data
import ray.train
import torch
from digits import build_model, load_data
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer
from torch import nn


class Digits(lightning.LightningModule):
    """The digits' classifier as a Lightning module."""

    def __init__(self, lr: float, epoch_seconds: float) -> None:
        super().__init__()
        self.lr, self.epoch_seconds = lr, epoch_seconds
        self.layers = build_model(seed=7)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        loss = nn.functional.cross_entropy(self.layers(batch["image"]), batch["label"])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        """The accuracy on what was not trained on."""
        images, labels = batch
        self.log("accuracy", (self.layers(images).argmax(1) == labels).float().mean())
        time.sleep(
            self.epoch_seconds
        )  # digits are learnt in milliseconds; a longer epoch leaves time to break something

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with momentum, whose state is in the checkpoint."""
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def datasets() -> dict[str, ray.data.Dataset]:
    """The training rows: called for each attempt, so a restore has them again."""
    images, labels, _, _ = load_data()
    rows = [{"image": image, "label": label} for image, label in zip(images.numpy(), labels.tolist(), strict=True)]
    return {"train": ray.data.from_items(rows)}


def train_loop(config: dict) -> None:
    """Train for `config["epochs"]` epochs, from the restored checkpoint if there is one."""
    torch.set_num_threads(1)
    _, _, test_images, test_labels = load_data()
    test = torch.utils.data.TensorDataset(test_images, test_labels)
    trainer = prepare_trainer(
        lightning.Trainer(
            max_epochs=config["epochs"],
            accelerator="cpu",
            devices="auto",
            strategy=RayDDPStrategy(),
            plugins=[RayLightningEnvironment()],
            callbacks=[RayTrainReportCallback()],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            logger=False,
        )
    )
    checkpoint = ray.train.get_checkpoint()
    with checkpoint.as_directory() if checkpoint else contextlib.nullcontext() as directory:
        trainer.fit(
            Digits(config["lr"], config.get("epoch_seconds", 0)),
            train_dataloaders=ray.train.get_dataset_shard("train").iter_torch_batches(batch_size=64),
            val_dataloaders=torch.utils.data.DataLoader(test, batch_size=len(test)),
            ckpt_path=os.path.join(directory, RayTrainReportCallback.CHECKPOINT_NAME) if directory else None,
        )
