"""`airflow ray-train ...` in this process, through Airflow's own parser, and experiments on disk for it to look at."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory_store import MemoryStore
from tests.support.training_try import Bench


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out, self.err
        return json.loads(self.out)

    @property
    def text(self) -> str:
        """Without line breaks and the tree's lines."""
        return " ".join(self.out.translate(dict.fromkeys(map(ord, "│├└─"), " ")).split())


class CommandLine:
    """Runs commands as a person types them."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        from airflow.cli.cli_config import DefaultHelpParser
        from airflow.cli.cli_parser import _add_command

        from airflow_provider.cli.definition import ray_train_commands

        self._capsys = capsys
        self._parser = DefaultHelpParser(prog="airflow")
        commands = self._parser.add_subparsers()
        for group in ray_train_commands():
            _add_command(commands, group)

    def __call__(self, *words: str | Path) -> Said:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            self._run(*map(str, words))
        out, err = self._capsys.readouterr()
        code = ended.value.code
        return Said(code if isinstance(code, int) else 0, out, err)

    def _run(self, *words: str) -> None:
        args = self._parser.parse_args(["ray-train", *words])
        args.func(args)


def on_disk(bench: Bench, folder: Path) -> Path:
    """The bench's bucket as a folder."""
    return lay_down(bench.store, folder)


def lay_down(store: MemoryStore, folder: Path) -> Path:
    """All objects of a store as files."""
    for info in store.list(""):
        found = store.read(info.key)
        assert found is not None
        path = folder / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(found.body)
    return folder


def make_older(folder: Path, *, days: float) -> None:
    """Let everything in a folder have been written so long ago."""
    then = time.time() - days * 86_400
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


def files(folder: Path) -> dict[str, bytes]:
    """All files below a folder, without the store's own."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in sorted(found.items()) if ".objectstore" not in name}
