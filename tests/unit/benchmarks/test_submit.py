"""The table and the goals of the submit benchmark, from made-up samples."""

from __future__ import annotations

from benchmarks.submit import Measured


def sample(own_s: float, running_s: float) -> dict[str, float]:
    return {"own_s": own_s, "ray_s": running_s - own_s, "running_s": running_s}


def measured(*, own_s: float = 0.8, calls: int = 12) -> Measured:
    samples = {
        "ours, 0 behind": [sample(0.5, 2.0)],
        "ours, 100 behind": [sample(0.4, 2.0)],
        "ours, 10,000 behind": [sample(own_s, 2.5), sample(own_s, 3.5)],
        "one raw POST": [sample(0.01, 1.5)],
    }
    return Measured({0: 7, 100: 12, 10_000: calls}, samples, {"SubmitRayJob": "cannot be imported: no"})


def test_goals_are_those_with_the_most_checkpoints() -> None:
    assert [goal.is_met for goal in measured().goals()] == [True, True]
    assert [goal.is_met for goal in measured(own_s=1.0, calls=17).goals()] == [False, False]
    assert "10,000" in measured().goals()[0].text


def test_the_order_is_fitted_over_the_sizes_that_have_checkpoints() -> None:
    assert round(measured().order, 3) == 0.151


def test_a_peer_that_could_not_be_measured_has_a_row_with_the_reason() -> None:
    rows = measured().rows()
    assert [row["side"] for row in rows] == ["RayTrainOperator"] * 3 + ["one raw POST", "SubmitRayJob"]
    assert rows[-1]["running_s"] == "cannot be imported: no"
    assert [row.get("calls") for row in rows] == [7, 12, 12, None, None]
    bars = measured().plots()[1].bars  # type: ignore[union-attr]
    assert [bar.label for bar in bars] == ["ours, 10,000 behind", "one raw POST", "SubmitRayJob"]
