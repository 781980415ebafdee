"""A training that reports each epoch in another way: SYNC, ASYNC, NO_UPLOAD, and through an upload function of its own."""

import json
import os
import tempfile
import time

import pyarrow.fs
import ray.train

MODES = ("SYNC", "ASYNC", "NO_UPLOAD", "UPLOAD_FN")
SCORES = (0.1, 0.9, 0.5, 0.3)


def upload(checkpoint, name):
    """As Ray's guide has it: copy to a folder of the given name in the run directory."""
    storage = ray.train.get_context().get_storage()
    path = f"{storage.experiment_fs_path}/{name}"
    storage.storage_filesystem.create_dir(path)
    pyarrow.fs.copy_files(
        checkpoint.path,
        path,
        source_filesystem=checkpoint.filesystem,
        destination_filesystem=storage.storage_filesystem,
    )
    return ray.train.Checkpoint(path, filesystem=storage.storage_filesystem)


def saved(epoch):
    """A local folder that outlives this call: an asynchronous upload reads it later."""
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "state.json"), "w") as file:
        json.dump({"epoch": epoch}, file)
    return ray.train.Checkpoint.from_directory(folder)


def report(epoch, mode):
    from ray.train import CheckpointUploadMode

    metrics = {"epoch": epoch, "score": SCORES[epoch % len(SCORES)]}
    checkpoint = saved(epoch)
    if mode == "UPLOAD_FN":
        ray.train.report(metrics, checkpoint, f"by_fn_{epoch}", checkpoint_upload_fn=upload)
    elif mode == "NO_UPLOAD":
        mine = upload(checkpoint, f"mine/{os.environ['RAY_TRAIN_AIRFLOW_ATTEMPT']}/epoch_{epoch}")
        ray.train.report(metrics, mine, checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD)
    else:
        ray.train.report(metrics, checkpoint, checkpoint_upload_mode=CheckpointUploadMode[mode])


def train_loop(config):
    start = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder, open(os.path.join(folder, "state.json")) as file:
            start = json.load(file)["epoch"] + 1
    print(f"LOOP starts at epoch {start}", flush=True)  # noqa: T201 the test reads it
    for epoch in range(start, config["epochs"]):
        report(epoch, MODES[epoch % len(MODES)])
    while config.get("waits"):
        time.sleep(0.5)
