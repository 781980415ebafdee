"""The troubleshooting page quotes messages: each is one that the code can say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations" / "troubleshooting.md").read_text()
QUOTED = re.findall(r"^\| `([^`]+)` (?:\||behind)", PAGE, re.MULTILINE)


def said() -> str:
    """Every text in the code, with what an f-string fills in as `...`, a line each."""
    texts = []
    for path in (ROOT / "airflow_provider").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(" ".join(text.split()) for text in texts)


SAID = said()


def is_said(message: str) -> bool:
    """Whether one text of the code has the message's words in their order."""
    parts = [re.escape(part.strip()) for part in message.split("...") if part.strip()]
    return re.search(r"[^\n]*".join(parts), SAID) is not None


def test_there_are_messages() -> None:
    assert len(QUOTED) > 60


@pytest.mark.parametrize("message", QUOTED)
def test_the_code_says_it(message: str) -> None:
    assert is_said(message)


def test_another_message_is_found_out() -> None:
    assert not is_said("the flux capacitor is ... empty")
    assert is_said("The bucket ... does not exist")
