"""The same training on Ray alone, as a script for the Jobs API. One argument: JSON with `run` and `loop`.

`run` may name the run directory; without a name Ray makes one up, and the training begins from scratch.
"""

import json
import sys

from stepping import mark, train_loop

given = json.loads(sys.argv[1])
mark(given["loop"]["marks"], "main")

import ray.train  # noqa: E402 - the mark before it tells how long the imports take
from ray.train.torch import TorchTrainer  # noqa: E402

run = given["run"]
result = TorchTrainer(
    train_loop,
    train_loop_config=given["loop"],
    scaling_config=ray.train.ScalingConfig(num_workers=run["num_workers"]),
    run_config=ray.train.RunConfig(
        storage_path=run["storage_path"],
        failure_config=ray.train.FailureConfig(max_failures=run["max_failures"]),
        checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        **({"name": run["name"]} if run.get("name") else {}),
    ),
).fit()
mark(given["loop"]["marks"], "ended")
