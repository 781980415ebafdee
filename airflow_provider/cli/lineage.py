"""`airflow ray-train lineage`: tries, attempts and checkpoints of an experiment, as the bucket tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.cli.answer import Answer, command
from airflow_provider.cli.lineage_tree import LineageTree
from airflow_provider.cli.target import find_target
from airflow_provider.core.experiment_sight import ExperimentSight, TrainingStage, training_stage
from airflow_provider.core.lineage import ExperimentFacts, project
from airflow_provider.operators.collecting import read_experiment

if TYPE_CHECKING:
    from argparse import Namespace

    from rich.console import Console


def stage_of(facts: ExperimentFacts) -> TrainingStage:
    """Where the newest generation's training stands."""
    owner = max(facts.owners, key=lambda one: one.k, default=None)
    return training_stage(ExperimentSight(facts.uri, owner, facts if facts.attempts else None))


def show_lineage(args: Namespace) -> Answer:
    """Read all records of the experiment and print the tree. Writes nothing."""
    records = find_target(args).records()
    facts = read_experiment(records)
    found, stage = project(facts), stage_of(facts)
    newest = facts.attempts[-1] if facts.attempts else None
    alive = records.alive(newest.claim.ref) if newest is not None and newest.final_outcome is None else None
    tree = LineageTree(
        found, stage=stage, owner=max(facts.owners, key=lambda one: one.k), alive=alive, is_all=args.is_all
    )
    data = found.model_dump(mode="json") | {
        "stage": stage.stage.value,
        "stage_reason": stage.reason,
        "alive": alive.record.model_dump(mode="json") | {"age_s": alive.age_s} if alive is not None else None,
    }

    def show(console: Console) -> None:
        console.print(found.experiment, style="bold", soft_wrap=True)
        console.print(tree.render())

    return Answer(data, show)


lineage = command(show_lineage)
