"""Every literal travels as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.dag_file import HEADER, load, on_cluster, shipped

LITERALS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\r"))
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(constant=LITERALS, enclosed=LITERALS, text=st.text(st.characters(codec="ascii", exclude_characters="\r\0\\\"'")))
def test_any_literal_travels(constant: Any, enclosed: Any, text: str, tmp_path: Path) -> None:
    """As a module's constant, in a closure, and in a multi-line string of the function itself."""
    source = (
        f"{HEADER}CONSTANT = {constant!r}\n"
        "def around(enclosed):\n"
        "    @task.ray_train(storage_path='/shared/models')\n"
        "    def train():\n"
        f'        return CONSTANT, enclosed, """{text}"""\n'
        "    return train\n"
        f"train = around({enclosed!r})\n"
    )
    module = load(tmp_path, source)
    assert on_cluster(shipped(module.train))["train"]() == module.train.function() == (constant, enclosed, text)
