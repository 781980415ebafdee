"""`airflow ray-train lineage`: tries, attempts and checkpoints of an experiment, as the bucket tells them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from airflow_provider.cli.answer import Answer, command
from airflow_provider.cli.lineage_tree import LineageTree
from airflow_provider.cli.target import find_target
from airflow_provider.core.experiment_sight import training_stage
from airflow_provider.core.goodput import goodput, goodput_xcom
from airflow_provider.core.lineage import project
from airflow_provider.core.strict_json import to_strict
from airflow_provider.operators.collecting import read_experiment
from airflow_provider.storage.experiment_view import ExperimentView

if TYPE_CHECKING:
    from argparse import Namespace

    from rich.console import Console


def show_lineage(args: Namespace) -> Answer:
    """Read all records of the experiment and print the tree. Writes nothing."""
    records = find_target(args).records()
    facts = read_experiment(records)
    found, stage = project(facts), training_stage(ExperimentView(records).look())
    spent = goodput(facts, now=datetime.now(timezone.utc)).total
    newest = facts.attempts[-1] if facts.attempts else None
    alive = records.alive(newest.claim.ref) if newest is not None and newest.final_outcome is None else None
    owner = max(facts.owners, key=lambda one: one.k)
    tree = LineageTree(found, stage=stage, owner=owner, goodput=spent, alive=alive, is_all=args.is_all)
    data = found.model_dump(mode="json") | {
        "stage": stage.stage.value,
        "stage_reason": stage.reason,
        "goodput": goodput_xcom(spent),
        # Of records, this one alone has metrics as they were written: a NaN in it is no JSON.
        "alive": to_strict(alive.record.model_dump(mode="json")) | {"age_s": alive.age_s}
        if alive is not None
        else None,
    }

    def show(console: Console) -> None:
        console.print(found.experiment, style="bold", soft_wrap=True)
        console.print(tree.render())

    return Answer(data, show)


lineage = command(show_lineage)
