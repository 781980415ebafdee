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


def stage_of(facts: ExperimentFacts) -> TrainingStage:
    """Where the newest generation's training stands."""
    owner = max(facts.owners, key=lambda one: one.k, default=None)
    return training_stage(ExperimentSight(facts.uri, owner, facts if facts.attempts else None))


def show_lineage(args: Namespace) -> Answer:
    """Read all records of the experiment and print the tree. Writes nothing."""
    facts = read_experiment(find_target(args).records())
    found, stage = project(facts), stage_of(facts)
    tree = LineageTree(found, stage=stage, owner=max(facts.owners, key=lambda one: one.k), is_all=args.is_all)
    data = found.model_dump(mode="json") | {"stage": stage.stage.value, "stage_reason": stage.reason}
    return Answer(data, lambda console: console.print(tree.render()))


lineage = command(show_lineage)
