"""What Airflow's parser gets: the commands, cheaply, each with its help and its exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from airflow.cli.cli_config import ActionCommand, GroupCommand
from airflow.sdk._shared.module_loading import import_string

from airflow_provider.cli.definition import ray_train_commands
from airflow_provider.provider_info import get_provider_info
from tests.support.command_line import CommandLine

HEAVY = (
    "ray",
    "torch",
    "boto3",
    "botocore",
    "pyarrow",
    "pandas",
    "numpy",
    "aiohttp",
    "httpx",
    "sqlalchemy",
    "pydantic",
    "rich",
)


def actions() -> dict[str, ActionCommand]:
    """Each command by its words."""
    found: dict[str, ActionCommand] = {}

    def walk(command: ActionCommand | GroupCommand, words: str) -> None:
        if isinstance(command, GroupCommand):
            for sub in command.subcommands:
                walk(sub, f"{words} {sub.name}".strip())
        else:
            found[words] = command

    for group in ray_train_commands():
        walk(group, "")
    return found


def test_the_commands_are_those_that_the_page_names() -> None:
    assert set(actions()) == {
        "doctor",
        "lineage",
        "experiments",
        "restore-plan",
        "checkpoints quarantine",
        "checkpoints release",
        "gc",
    }


def test_airflow_finds_them_by_the_providers_info() -> None:
    (path,) = get_provider_info()["cli"]
    assert import_string(path) is ray_train_commands


def test_naming_them_loads_nothing_that_airflows_parser_has_not_loaded() -> None:
    """The parser is built at every `airflow` command, whatever it is about."""
    program = (
        "import sys; import airflow.cli.cli_config; before = set(sys.modules);"
        "from airflow_provider.cli.definition import ray_train_commands; ray_train_commands();"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    added = done.stdout.splitlines()[-1].split()
    assert "airflow_provider.cli.definition" in added
    assert [name for name in added if name.partition(".")[0] in HEAVY] == []
    assert [name for name in added if name.startswith("airflow_provider.")] == [
        "airflow_provider.cli",
        "airflow_provider.cli.definition",
    ]


@pytest.mark.parametrize("words", sorted(actions()))
def test_each_command_can_be_loaded_and_explains_itself(cli: CommandLine, words: str) -> None:
    said = cli(*words.split(), "--help")
    assert said.code == 0
    assert "exit codes: 0 fine" in " ".join(said.out.split())
    for arg in actions()[words].args:
        assert arg.kwargs.get("help"), arg.flags
    assert callable(import_string(_path(words)))


def _path(words: str) -> str:
    module = {"checkpoints quarantine": "checkpoints", "checkpoints release": "checkpoints"}.get(words, words)
    return f"airflow_provider.cli.{module.replace('-', '_')}.{words.rsplit(maxsplit=1)[-1].replace('-', '_')}"


def test_a_wrong_command_line_is_a_usage_error(cli: CommandLine) -> None:
    assert cli("lineage", "--no-such-option").code == 2
    assert cli("checkpoints", "quarantine", "g000001/x").code == 2, "no reason is given"


def test_what_airflows_parser_refuses_is_told_by_airflow_with_json_too(cli: CommandLine) -> None:
    """As docs/cli.md says: the reason on stderr, and no half of a JSON document on stdout."""
    said = cli("doctor", "--timeout", "soon", "--json")
    assert said.code == 2
    assert "invalid float value: 'soon'" in said.err
    assert "usage:" in said.out.lower()
    assert not said.out.lstrip().startswith("{")
