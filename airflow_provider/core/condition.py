"""Conditions on reported metrics as text: `val_loss < 0.3 and epoch >= 5`, `plateau(val_loss, patience=5, min_delta=0.01)`.

A parser of its own, and a small one: nothing of a condition is ever evaluated as Python. A metric has its reported name; one
with other characters than letters, digits, `_`, `.`, `/` and `:` stands in quotes. Only finite numbers count: NaN fulfils nothing.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from typing_extensions import Self

from airflow_provider.core.errors import InvalidCondition
from airflow_provider.core.manifest import finite
from airflow_provider.core.redaction import redact
from airflow_provider.core.strict_json import shortened

History = Sequence[Mapping[str, Any]]
"""Metrics of committed checkpoints, each the parent of the next one."""
MAX_TEXT = 1_000
_HOW = "write `val_loss < 0.3`, `epoch >= 5 and acc > 0.9` or `plateau(val_loss, patience=5, min_delta=0.01, mode=min)`"
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])
    |(?P<name>[^\W\d][\w./:]*)
    |(?P<quoted>"[^"]*"|'[^']*')
    |(?P<operator><=|>=|==|!=|<|>)
    |(?P<mark>[(),=])""",
    re.VERBOSE,
)
_BARE = re.compile(r"[^\W\d][\w./:]*")
_WORDS = frozenset({"and", "or", "not", "plateau"})
"""Words that a metric can't have as its name without quotes."""
_WORST: dict[str, float] = {"min": float("inf"), "max": float("-inf")}


@dataclass(frozen=True)
class Comparison:
    """A metric compared with a number."""

    metric: str
    symbol: str
    number: float

    def __str__(self) -> str:
        """As it is written."""
        return f"{_written(self.metric)} {self.symbol} {_digits(self.number)}"

    def holds_at(self, history: History) -> list[bool]:
        """Whether it holds at each checkpoint."""
        return [self._holds(finite(metrics.get(self.metric))) for metrics in history]

    def _holds(self, value: float | None) -> bool:
        return value is not None and _OPERATORS[self.symbol](value, self.number)

    def explain(self, history: History) -> str:
        """How far the metric has come."""
        values = _values(self.metric, history)
        if not values:
            return f"{self}: no checkpoint reports it as a number"
        best = {"<": f", lowest {min(values):g}", ">": f", highest {max(values):g}"}.get(self.symbol[0], "")
        return f"{self}: last {values[-1]:g}{best} in {len(values)} checkpoints"


@dataclass(frozen=True)
class Plateau:
    """No improvement of a metric by `min_delta` over `patience` checkpoints in a row.

    Checkpoints that don't report the metric are not counted; one that reports NaN counts as no improvement.
    """

    metric: str
    patience: int
    min_delta: float = 0.0
    mode: Literal["min", "max"] = "min"

    def __str__(self) -> str:
        """As it is written."""
        given = f"patience={self.patience}, min_delta={_digits(self.min_delta)}, mode={self.mode}"
        return f"plateau({_written(self.metric)}, {given})"

    def holds_at(self, history: History) -> list[bool]:
        """Whether it holds at each checkpoint."""
        return [waited >= self.patience for waited, _ in self._course(history)]

    def explain(self, history: History) -> str:
        """How long the metric has not improved."""
        course = list(self._course(history))
        if not course or course[-1][1] == _WORST[self.mode]:
            return f"{self}: no checkpoint reports it as a number"
        waited, best = course[-1]
        return f"{self}: best {best:g}, not improved in the last {waited} checkpoints"

    def _course(self, history: History) -> Iterator[tuple[int, float]]:
        """Checkpoints without improvement in a row, and the best value, at each checkpoint."""
        waited, best = 0, _WORST[self.mode]
        for metrics in history:
            value = finite(metrics.get(self.metric))
            if value is not None and self._is_better(value, best):
                waited, best = 0, value
            elif self.metric in metrics and best != _WORST[self.mode]:
                waited += 1
            yield waited, best

    def _is_better(self, value: float, best: float) -> bool:
        if self.mode == "min":
            return value < best and value <= best - self.min_delta
        return value > best and value >= best + self.min_delta


@dataclass(frozen=True)
class Condition:
    """All terms must hold at the same checkpoint."""

    terms: tuple[Comparison | Plateau, ...]

    def __str__(self) -> str:
        """As it is written."""
        return " and ".join(map(str, self.terms))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a condition. Raises InvalidCondition, which names the column."""
        return cls(_Parser(text).condition())

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics it asks for."""
        return tuple(dict.fromkeys(term.metric for term in self.terms))

    def holds_at(self, history: History) -> list[bool]:
        """Whether it holds at each checkpoint of a history. Linear in its length."""
        return [all(held) for held in zip(*(term.holds_at(history) for term in self.terms), strict=True)]

    def explain(self, history: History) -> str:
        """How far each term is from holding, with numbers."""
        return "; ".join(term.explain(history) for term in self.terms)


def _values(metric: str, history: History) -> list[float]:
    return [value for metrics in history if (value := finite(metrics.get(metric))) is not None]


def _written(metric: str) -> str:
    if _BARE.fullmatch(metric) and metric not in _WORDS:
        return metric
    return f"'{metric}'" if '"' in metric else f'"{metric}"'


def _digits(number: float) -> str:
    """The shortest text that reads as the same number."""
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    column: int
    """From 1."""

    @property
    def shown(self) -> str:
        return "the end" if self.kind == "end" else repr(shortened(self.text, limit=40))


class _Parser:
    """Recursive descent over at most 1,000 characters."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._scan())
        self._next = 0

    def condition(self) -> tuple[Comparison | Plateau, ...]:
        terms = [self._term()]
        while self._peek().kind != "end":
            token = self._take()
            if token.text != "and":
                self._refuse(token, f"'and' or the end is expected, not {token.shown}")
            terms.append(self._term())
        return tuple(terms)

    # --- terms -------------------------------------------------------------------------------------------------------

    def _term(self) -> Comparison | Plateau:
        token = self._peek()
        is_call = self._tokens[min(self._next + 1, len(self._tokens) - 1)].text == "("
        if token.kind == "name" and token.text == "plateau" and is_call:
            return self._plateau()
        metric = self._metric()
        symbol = self._take()
        if symbol.kind != "operator":
            is_assignment = " (equality is written ==)" if symbol.text == "=" else ""
            self._refuse(symbol, f"a comparison is expected after {metric!r}, not {symbol.shown}{is_assignment}")
        return Comparison(metric, symbol.text, self._number())

    def _metric(self) -> str:
        token = self._take()
        if token.kind == "quoted" and len(token.text) > 2:
            return token.text[1:-1]
        if token.kind != "name" or token.text in _WORDS:
            self._refuse(token, f"a metric's name is expected, not {token.shown}")
        return token.text

    def _number(self) -> float:
        token = self._take()
        if token.kind != "number":
            self._refuse(token, f"a number is expected, not {token.shown}")
        number = float(token.text)
        if finite(number) is None:
            self._refuse(token, "the number is too large")
        return number

    def _plateau(self) -> Plateau:
        start = self._take()
        self._expect("(")
        metric = self._metric()
        given: dict[str, Any] = {}
        while self._peek().text == ",":
            self._take()
            name = self._take()
            if name.text not in {"patience", "min_delta", "mode"} or name.text in given:
                self._refuse(name, f"patience, min_delta or mode is expected, each once, not {name.shown}")
            self._expect("=")
            given[name.text] = self._argument(name.text)
        self._expect(")")
        if "patience" not in given:
            self._refuse(start, "a plateau needs patience=, a number of checkpoints")
        return Plateau(metric, **given)

    def _argument(self, name: str) -> Any:
        token = self._peek()
        if name == "mode":
            self._take()
            if token.text not in _WORST:
                self._refuse(token, f"min or max is expected, not {token.shown}")
            return token.text
        number = self._number()
        if name == "patience":
            if not number.is_integer() or not 1 <= number <= 1e6:
                self._refuse(token, "patience is a whole number of checkpoints, from 1")
            return int(number)
        if number < 0:
            self._refuse(token, "min_delta is not negative")
        return number

    # --- tokens ------------------------------------------------------------------------------------------------------

    def _scan(self) -> Iterator[_Token]:
        if len(self._text) > MAX_TEXT:
            self._refuse(_Token("end", "", MAX_TEXT + 1), f"it has {len(self._text)} characters, more than {MAX_TEXT}")
        at = 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None:
                yield _Token("odd", self._text[at], at + 1)
                at += 1
                continue
            if match.lastgroup != "space":
                yield _Token(str(match.lastgroup), match[0], at + 1)
            at = match.end()
        yield _Token("end", "", len(self._text) + 1)

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        if token.kind == "odd":
            is_quote = token.text in "\"'"
            hint = ": a quote is open" if is_quote else "; a name with such characters stands in quotes"
            self._refuse(token, f"{token.text!r} has no meaning here{hint}")
        return token

    def _expect(self, mark: str) -> None:
        token = self._take()
        if token.text != mark:
            self._refuse(token, f"{mark!r} is expected, not {token.shown}")

    def _refuse(self, token: _Token, why: str) -> NoReturn:
        raise InvalidCondition(
            f"The condition {shortened(redact(self._text), limit=200)!r} can't be read at column {token.column}",
            known=why,
            change=_HOW,
            column=token.column,
        )
