"""Cuts statements out of a source file so that each stays on its line, at its column.

Everything else becomes blank, and each block around a kept statement (a function, a `with`) becomes `if True:`. So nothing
is dedented, which would change multi-line strings, nothing is written anew, and tracebacks name the file's own lines.
"""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider.core.source_bindings import additions

FUTURE = "from __future__ import annotations"
_INDENTATION = re.compile(rb"[ \t\f]*")


class SourceFile:
    """A file's text with its syntax tree."""

    def __init__(self, text: str) -> None:
        """Raises SyntaxError for what this Python can't read."""
        # Line ends as Python counts them: `splitlines` knows more of them than the parser does.
        self.text = io.StringIO(text, newline=None).read()
        self.tree = ast.parse(self.text)
        # Columns of the tree count bytes of UTF-8.
        self.lines = [line.encode() for line in self.text.split("\n")]
        # A file may make hundreds of trainings: what is asked for each is looked for once.
        self.globals = [node for node in ast.walk(self.tree) if isinstance(node, ast.Global)]
        self.additions = list(additions(self.tree))

    def indentation(self, line: int) -> str:
        """The blank beginning of a line, counted from 1."""
        found = _INDENTATION.match(self.lines[line - 1])
        return found.group().decode() if found else ""

    def cut(self, node: ast.stmt | ast.expr) -> list[str]:
        """The node's own text, line by line."""
        last = node.end_lineno or node.lineno
        lines = self.lines[node.lineno - 1 : last]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return [line.decode() for line in lines]


@dataclass(frozen=True)
class Piece:
    """One statement to keep."""

    node: ast.stmt
    around: tuple[ast.stmt, ...] = ()
    """The blocks around it, the outermost first."""
    text: str | None = None
    """What stands there instead, on one line."""
    decorators: tuple[ast.expr, ...] = ()
    """Those that are kept, of a function or class."""


def render(file: SourceFile, pieces: Iterable[Piece], *, constants: Iterable[str] = ()) -> str:
    """A module with these statements. `constants` are assignments that stand nowhere in the file."""
    rows = _Rows(file)
    kept = sorted(pieces, key=lambda piece: (piece.node.lineno, piece.node.col_offset))
    for block in {id(block): block for piece in kept for block in piece.around}.values():
        rows.put(block.lineno, "if True:", is_compound=True)
    for piece in kept:
        for decorator in piece.decorators:
            rows.put(decorator.lineno, *_with_first(file.cut(decorator), "@"), is_compound=True)
        is_compound = not isinstance(piece.node, _SIMPLE)
        lines = file.cut(piece.node) if piece.text is None else [piece.text]
        rows.put(piece.node.lineno, *lines, is_compound=is_compound)
    return rows.text(first="; ".join([FUTURE, *constants]))


_SIMPLE = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr, ast.Pass)


def _with_first(lines: list[str], prefix: str) -> list[str]:
    return [prefix + lines[0], *lines[1:]]


class _Rows:
    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._rows = [""] * len(file.lines)
        self._begins_compound = False

    def put(self, line: int, *lines: str, is_compound: bool) -> None:
        before = self._rows[line - 1]
        if before:
            glue = " " if before.endswith(":") else "; "
            self._rows[line - 1] = before + glue + lines[0]
        else:
            self._rows[line - 1] = self._file.indentation(line) + lines[0]
            self._begins_compound |= line == 1 and is_compound
        self._rows[line : line + len(lines) - 1] = lines[1:]

    def text(self, *, first: str) -> str:
        if self._begins_compound:
            # The one case in which lines move, by one: a block in the file's first line can't share it.
            self._rows.insert(0, first)
        else:
            self._rows[0] = f"{first}; {self._rows[0]}" if self._rows[0] else first
        return "\n".join(self._rows).rstrip() + "\n"
