"""The commands for Airflow's parser, which is built at every `airflow` command: nothing heavy is imported here."""

from __future__ import annotations

from typing import Any

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand, lazy_load_command

_ROOM = "airflow_provider.cli"
_EXIT_CODES = (
    "exit codes: 0 fine, 1 it found a problem or could not do all, 2 wrong command line or connection, "
    "3 not found, 4 unreachable or refused"
)


def _arg(*flags: str, **options: Any) -> Arg:
    return Arg(flags, **options)  # type: ignore[no-untyped-call]  # Airflow leaves it untyped


_JSON = _arg("--json", dest="output", action="store_true", help="Print JSON for a script instead of text")
"""Named `output` on purpose: Airflow then keeps its own log lines off stdout."""
_VERBOSE = _arg("-v", "--verbose", action="store_true", help="Show log lines and tracebacks")
_CONN_ID = _arg("--conn-id", help="Airflow connection of type ray (default: the operator's, else ray_default)")
_AWS_CONN_ID = _arg(
    "--aws-conn-id",
    help="Airflow connection of the bucket (default: the operator's, else aws_default; '' is boto3's own chain)",
)
_EXPERIMENT = (
    _arg("experiment", nargs="?", help="URI of the experiment: s3://bucket/path, or an absolute path"),
    _arg("--dag-id", help="Instead of the URI: the training's DAG"),
    _arg("--task-id", help="Instead of the URI: the training's task"),
    _arg("--run-id", help="Instead of the URI: the training's DAG run"),
    _arg("--map-index", type=int, default=-1, help="Instead of the URI: the training's map index, if it is mapped"),
    _arg("--storage-path", help="Derive the path from it and the training's names, without Airflow's database"),
    _AWS_CONN_ID,
    _JSON,
    _VERBOSE,
)
_CHECKPOINT = (
    _arg("checkpoint", help="Its URI, or its name in the lineage together with the experiment's options"),
    _arg("--experiment", help="URI of the experiment, where the checkpoint is given by its name"),
    *_EXPERIMENT[1:],
    _arg("--reason", required=True, help="Why; stands in the record with your user name"),
)


def _command(name: str, help_text: str, args: tuple[Arg, ...], *, module: str | None = None) -> ActionCommand:
    path = f"{_ROOM}.{module or name}.{name.replace('-', '_')}"
    return ActionCommand(name=name, help=help_text, func=lazy_load_command(path), args=args, epilog=_EXIT_CODES)


_ALL = _arg("--all", dest="is_all", action="store_true", help="Leave nothing out")
_DOCTOR = (
    _arg("--storage-path", help="Check the bucket here: a small object is written, read and deleted below it"),
    _arg("--read-only", action="store_true", help="Write nothing to the bucket"),
    _arg(
        "--submit-check", action="store_true", help="Send a small job that looks at Ray and the bucket from the cluster"
    ),
    _arg("--runtime-env", help="JSON: send the check in this runtime environment, as the operator would"),
    _arg("--endpoint-url", help="Where the cluster reaches the store, if not where Airflow does (storage_config)"),
    _arg("--python", default="python", help="The driver's interpreter on the cluster (default: python)"),
    _arg("--timeout", type=float, default=180.0, metavar="SECONDS", help="How long the check may take (default: 180)"),
    _CONN_ID,
    _AWS_CONN_ID,
    _JSON,
    _VERBOSE,
)
_EXPERIMENTS = (
    _arg("storage_path", help="s3://bucket/prefix or an absolute path: all experiments below it"),
    _arg("--dag-id", help="Only those of this DAG"),
    _arg("--task-id", help="Only those of this task"),
    _arg("--limit", type=int, default=20, help="The newest so many (default: 20)"),
    _arg("--depth", type=int, default=5, help="How many folders deep to look (default: 5)"),
    _AWS_CONN_ID,
    _JSON,
    _VERBOSE,
)
_PLAN = (
    *_EXPERIMENT,
    _CONN_ID,
    _arg(
        "--after",
        choices=("auto", "retry", "clear"),
        default="auto",
        help="What starts the next try (default: a clear where Airflow says that the task has ended, else a retry)",
    ),
    _arg(
        "--on-clear",
        choices=("auto", "restore", "fresh"),
        default="auto",
        help="The operator's on_clear (default: auto, as the operator's)",
    ),
)
_GC = (
    _arg("storage_path", help="The experiments below it, and jobs of theirs; or one experiment"),
    _arg("--jobs", action="store_true", help="Orphan jobs of ours on the cluster"),
    _arg("--leftovers", action="store_true", help="Uploads that were never committed, of attempts that are over"),
    _arg("--experiments", action="store_true", help="Whole experiments that ended long ago"),
    _arg(
        "--older-than", default="30d", metavar="AGE", help="For --leftovers and --experiments: 30d, 12h (default: 30d)"
    ),
    _arg("--depth", type=int, default=5, help="How many folders deep to look (default: 5)"),
    _arg("--apply", dest="is_applied", action="store_true", help="Act; without it nothing is changed"),
    _ALL,
    _CONN_ID,
    _AWS_CONN_ID,
    _JSON,
    _VERBOSE,
)


def ray_train_commands() -> list[GroupCommand]:
    """What Airflow asks for: the group `airflow ray-train`."""
    checkpoints = GroupCommand(
        name="checkpoints",
        help="Set a checkpoint aside, or give it back",
        subcommands=(
            _command(
                "quarantine", "Never restore from a checkpoint until it is released", _CHECKPOINT, module="checkpoints"
            ),
            _command("release", "Let a checkpoint be restored again", _CHECKPOINT, module="checkpoints"),
        ),
    )
    commands = (
        _command("doctor", "Check connections, versions, permissions and the cluster; say what to fix", _DOCTOR),
        _command("lineage", "Show tries, attempts and checkpoints of an experiment", (*_EXPERIMENT, _ALL)),
        _command("experiments", "List the experiments below a storage path", _EXPERIMENTS),
        _command(
            "restore-plan", "Say what the next try would do and why, without doing it", _PLAN, module="restore_plan"
        ),
        checkpoints,
        _command("gc", "Find orphan jobs, leftovers and old experiments; remove them with --apply", _GC),
    )
    return [GroupCommand(name="ray-train", help="Look after Ray Train experiments", subcommands=commands)]
