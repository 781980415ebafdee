"""What a command answers, and the process edge that prints it: text for a person, JSON for a script, an exit code."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

from airflow_provider.cli.airflow_side import read_connections_as_a_server
from airflow_provider.cli.exit_codes import OK, PROBLEM, exit_code
from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.redaction import redact

if TYPE_CHECKING:
    from argparse import Namespace

    from rich.console import Console

_INTERRUPTED = 130
_LEAST_WIDTH = 40
"""In fewer columns tables lose what they say; some places call their terminal 0 wide."""
_CONTROL = re.compile(r"(\x1b\[[0-9;]*m)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Colours, and whatever else a terminal would obey: exceptions and names of others may hold it."""


@dataclass(frozen=True)
class Answer:
    """The same facts twice: `data` for `--json`, `show` for a person."""

    data: Mapping[str, Any]
    show: Callable[[Console], None]
    exit_code: int = OK


def command(answer: Callable[[Namespace], Answer]) -> Callable[[Namespace], None]:
    """Make a command of a function: print its answer or its error, and exit. Nothing ends in a traceback."""

    @wraps(answer)
    def edge(args: Namespace) -> None:
        from airflow.utils.cli import suppress_logs_and_warning

        # Log lines and warnings of libraries would stand between the answer's lines; `--verbose` shows them.
        def answered(args: Namespace) -> None:
            raise SystemExit(run(answer, args))

        suppress_logs_and_warning(answered)(args)

    return edge


def run(answer: Callable[[Namespace], Answer], args: Namespace) -> int:
    """Carry out a command; returns its exit code."""
    read_connections_as_a_server()
    try:
        found = answer(args)
        _print(found, is_json=args.output)
    except RayTrainError as error:
        return _say(error, code=exit_code(error), is_json=args.output)
    except BrokenPipeError:  # `... | head`: whoever read has seen enough
        _drop_what_is_left()
        return OK
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:
        if args.verbose:
            raise
        unknown = RayTrainError(
            f"The command failed: {type(error).__name__}",
            known=redact(str(error))[:1_000],
            change="run it with --verbose for the traceback, and report it",
        )
        return _say(unknown, code=PROBLEM, is_json=args.output)
    return found.exit_code


def _drop_what_is_left() -> None:
    """The interpreter flushes stdout at its end, and would fail again."""
    with suppress(OSError, ValueError):  # a stdout without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console(*, is_error: bool = False) -> Console:
    """A console that writes as wide as the terminal, or 80 columns where there is none, and then without colours.

    Names of others are never read as markup.
    """
    from rich.console import Console

    made = Console(stderr=is_error, markup=False, highlight=False, emoji=False)
    made.width = max(made.width, _LEAST_WIDTH)
    return made


def _obeyed_by_none(text: str, *, has_colours: bool = False) -> str:
    return _CONTROL.sub(lambda found: (found[1] or "") if has_colours else "", text)


def _print(found: Answer, *, is_json: bool) -> None:
    if is_json:
        sys.stdout.write(json.dumps(found.data, indent=2, allow_nan=False, default=str) + "\n")
    else:
        shown = console()
        with shown.capture() as lines:
            found.show(shown)
        text = _obeyed_by_none(lines.get(), has_colours=shown.is_terminal)
        text = text.encode(shown.encoding, "backslashreplace").decode(shown.encoding)
        # Tables fill their columns with spaces, which nobody wants to copy.
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in text.splitlines()))
    sys.stdout.flush()


def _say(error: RayTrainError, *, code: int, is_json: bool) -> int:
    """Three lines: what happened, what is known, what to do."""
    what, known, change = (redact(part) for part in (error.what, error.known, error.change))
    if is_json:
        said = {"type": type(error).__name__, "what": what, "known": known, "change": change}
        sys.stdout.write(json.dumps({"error": said, "exit_code": code}, indent=2) + "\n")
        return code
    lines = [("error", what), ("known", known), ("to do", change)]
    shown = console(is_error=True)
    for name, text in lines:
        if text:
            line = f"{name}: {_obeyed_by_none(text).rstrip('.')}."
            shown.print(line, style="bold red" if name == "error" else None, soft_wrap=True)
    return code
