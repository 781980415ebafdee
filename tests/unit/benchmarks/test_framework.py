"""Sides in alternation, medians, the fitted order, and a report that says what was found."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks import __main__ as program
from benchmarks import page, peers
from benchmarks.fit import growth, steepest
from benchmarks.machine import Machine, is_quiet, sentence, this_machine
from benchmarks.measure import (
    MeasurementFailed,
    Spread,
    alternating,
    complete_rounds,
    difference,
    figure,
    number,
    run_python,
    spread,
)
from benchmarks.options import RESULTS, Options
from benchmarks.plot import Bar, Bars, Lines, Series, drawn
from benchmarks.report import Column, Goal, Report, printed, shown, written

MACHINE = Machine(
    measured_at="2026-11-30T07:00+00:00",
    cpu="A CPU",
    cores=2,
    memory_gib=16.0,
    kernel="Linux 6",
    python="3.11.7",
    versions={"provider": "0.1.0", "ray": "2.60.0"},
    load_at_start=[0.1, 0.2, 0.3],
)


def report(**changed: object) -> Report:
    whole = {
        "name": "import",
        "title": "What an import costs",
        "machine": MACHINE,
        "columns": (Column("side", "side"), Column("time", "time", "ms")),
        "rows": ({"side": "ours", "time": Spread(80.0, 70.0, 95.5)}, {"side": "peer", "time": "cannot be imported"}),
        "goals": (Goal.below("time of ours", 80.0, 100.0, "ms"), Goal.at_most("calls", 17, 16)),
        "notes": ("Nothing is claimed.",),
        "rounds": 5,
    }
    return Report(**{**whole, **changed})  # type: ignore[arg-type]


def test_sides_take_turns_and_each_second_round_is_reversed() -> None:
    """A side that always came second would always find the caches warm."""
    order: list[str] = []

    def side(name: str) -> dict[str, float]:
        order.append(name)
        return {"s": float(len(order))}

    samples = alternating({"a": lambda: side("a"), "b": lambda: side("b"), "c": lambda: side("c")}, 3)
    assert "".join(order) == "abccbaabc"
    assert [one["s"] for one in samples["a"]] == [1.0, 6.0, 7.0]
    with pytest.raises(ValueError, match="0 rounds"):
        alternating({}, 0)


def test_a_side_that_fails_late_costs_its_round_and_not_the_ones_before(capsys: pytest.CaptureFixture[str]) -> None:
    """What took hours stands; a round that only some came through can't be compared and goes."""
    order: list[str] = []

    def side(name: str, fails_at: int = 0) -> dict[str, float]:
        order.append(name)
        if len(order) == fails_at:
            raise MeasurementFailed("no answer")
        return {"s": float(len(order))}

    samples = alternating({"a": lambda: side("a", 8), "b": lambda: side("b"), "c": lambda: side("c", 9)}, 4)
    assert "".join(order) == "abccbaabc"
    assert {name: [one["s"] for one in found] for name, found in samples.items()} == {
        "a": [1.0, 6.0],
        "b": [2.0, 5.0],
        "c": [3.0, 4.0],
    }
    assert "round 3 of 4, c: no answer" in capsys.readouterr().err
    assert complete_rounds(samples, {"peer": "cannot be installed"}) == 2
    assert complete_rounds(samples, {"d": [{}]}) == 1
    order.clear()
    with pytest.raises(MeasurementFailed, match="no answer"):
        alternating({"a": lambda: side("a"), "b": lambda: side("b", 2)}, 4)


def test_a_figure_is_its_median_with_the_range() -> None:
    samples = [{"s": 3.0}, {"s": 1.0}, {"s": 10.0}]
    assert figure(samples, "s") == Spread(3.0, 1.0, 10.0)
    assert difference(samples, [{"s": 1.0}, {"s": 1.0}, {"s": 1.0}], "s") == Spread(2.0, 0.0, 9.0)
    with pytest.raises(ValueError, match="zip"):
        difference(samples, [{"s": 1.0}], "s")
    with pytest.raises(MeasurementFailed):
        spread([])
    assert Spread(1.0, 0.0, 2.0).times(10.0) == Spread(10.0, 0.0, 20.0)


def test_code_in_a_fresh_interpreter_answers_in_spite_of_what_else_is_printed() -> None:
    code = "print('noise'); big = bytearray(64 << 20); answer(rss=rss_mib(), peak=peak_mib(), names=len(sys_modules()))"
    before = "import sys\ndef sys_modules(): return sys.modules\n"
    got = run_python(sys.executable, before + code)
    assert got["peak"] >= got["rss"] > 64, "the memory of the code is its own"
    small = run_python(sys.executable, "answer(rss=rss_mib(), peak=peak_mib())")
    assert small["peak"] < 40 < got["peak"] - small["peak"], "and not its parent's"


@pytest.mark.parametrize(
    ("code", "said"), [("raise ValueError('no such thing')", "ValueError: no such thing"), ("pass", "wrote nothing")]
)
def test_code_that_fails_or_gives_no_answer_is_no_measurement(code: str, said: str) -> None:
    with pytest.raises(MeasurementFailed, match=said):
        run_python(sys.executable, code)
    with pytest.raises(MeasurementFailed, match="within"):
        run_python(sys.executable, "import time; time.sleep(30)", timeout_s=0.2)


@pytest.mark.parametrize("order", [0.5, 1.0, 2.0])
def test_the_order_of_growth_is_the_exponent(order: float) -> None:
    fitted = growth([(n, 3.0 * n**order) for n in (10, 100, 1_000)])
    assert fitted.order == pytest.approx(order)
    assert fitted.at(10_000) == pytest.approx(3.0 * 10_000**order)


def test_a_fixed_cost_does_not_hide_what_the_largest_size_does() -> None:
    points = [(n, 1e6 + n**2) for n in (100, 1_000, 10_000)]
    assert growth(points).order < 1.1
    assert steepest(points) > 1.6
    for wrong in ([(1.0, 1.0)], [(1.0, 0.0), (2.0, 1.0)], [(5.0, 1.0), (5.0, 2.0)]):
        with pytest.raises(ValueError, match="two sizes"):
            growth(wrong)


@pytest.mark.parametrize(
    ("goal", "is_met"),
    [
        (Goal.at_most("a", 16, 16), True),
        (Goal.at_most("a", 17, 16), False),
        (Goal.below("a", 99.9, 100), True),
        (Goal.below("a", 100, 100), False),
        (Goal.at_least("a", 97, 97), True),
        (Goal.at_least("a", 96.9, 97), False),
        (Goal.at_most("a", None, 16), False),
        (Goal.below("a", None, 16), False),
        (Goal.at_least("a", None, 16), False),
    ],
)
def test_a_goal_is_met_or_missed_and_never_met_unmeasured(goal: Goal, is_met: bool) -> None:
    assert goal.is_met is is_met


def test_the_printed_report_has_the_figures_the_verdicts_and_the_machine() -> None:
    text = printed(report())
    assert "80 (70\u201395.5)" in text
    assert "cannot be imported" in text
    assert "met: time of ours: 80 ms (goal < 100 ms)" in text
    assert "MISSED: calls: 17 (goal <= 16)" in text
    assert "A CPU, 2 cores" in text
    assert "5 rounds" in text
    assert "WARNING" not in text
    assert "WARNING" in printed(report(machine={**MACHINE, "load_at_start": [1.5, 0.2, 0.3]}))
    assert "QUICK" in printed(report(is_quick=True))


def test_the_json_says_all_that_is_printed(tmp_path: Path) -> None:
    written(report(plots=(Bars("t", "ms", (Bar("ours", Spread(1, 1, 1)),)),)), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["import.json", "import.svg"]
    found = json.loads((tmp_path / "import.json").read_text())
    assert shown(found["rows"][0]["time"]) == "80 (70\u201395.5)"
    assert found["goals"][1] == {"text": "calls", "limit": "<= 16", "measured": "17", "is_met": False}
    assert found["machine"] == MACHINE
    with pytest.raises(ValueError, match="JSON"):
        written(report(extra={"x": float("nan")}), tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (0.000012345, "0.0000123"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (12345.6, "12346"),
        (7.0, "7"),
    ],
)
def test_numbers_show_what_counts(value: float, text: str) -> None:
    assert number(value) == text


def test_a_drawing_is_xml_with_each_label_and_the_fitted_order() -> None:
    bars = Bars(
        "Bars & <more>",
        "ms",
        (Bar("a", Spread(2, 1, 3)), Bar("b", None, "cannot be imported"), Bar("c", Spread(0, 0, 0))),
    )
    points = [(n, Spread(n * 2.0, n * 1.0, n * 3.0)) for n in (10.0, 100.0, 1000.0)]
    lines = Lines("Lines", "checkpoints", "s", (Series("ours", points), Series("peer", points)), limit=50.0)
    root = ET.fromstring(drawn([bars, lines]))  # noqa: S314 - our own text
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "Bars & <more> [ms]" in texts
    assert "cannot be imported" in texts
    assert "ours (order 1.00)" in texts
    assert "goal 50" in texts
    height = float(root.attrib["viewBox"].split()[-1])
    assert height > 400, "one below the other"
    places = [
        float(text.attrib["y"])
        for text in root.iter("{http://www.w3.org/2000/svg}text")
        if "order" in (text.text or "")
    ]
    assert abs(places[0] - places[1]) >= 14, "names don't cover each other"


def test_this_machine_is_stated() -> None:
    machine = this_machine()
    assert machine["cores"] >= 1
    assert machine["memory_gib"] > 0
    assert machine["versions"]["airflow"].startswith("3.")
    assert machine["python"] in sentence(machine)
    assert is_quiet({**machine, "load_at_start": [0.0, 0.9, 9.0]})
    assert not is_quiet({**machine, "load_at_start": [0.0, 9.0, 9.0]}), "what ran a minute ago may not be over"
    assert sentence({**machine, "commit": "abc+"}).count("commit abc+; ") == 1


def test_a_quick_run_does_not_replace_what_was_measured() -> None:
    assert Options().results == RESULTS
    assert RESULTS not in (quick := Options(quick=True)).results.parents
    assert quick.results != RESULTS
    assert (quick.repeats(9), Options().repeats(9), Options(num_repeats=3).repeats(9)) == (2, 9, 3)
    assert (quick.choose(10_000, 100), Options().choose(10_000, 100)) == (100, 10_000)


def test_one_that_cannot_be_measured_does_not_keep_the_others_from_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(name: str, options: Options) -> Report:
        if name == "import":
            raise MeasurementFailed("no such interpreter")
        return report(name=name)

    monkeypatch.setattr(program, "measured", measured)
    monkeypatch.setattr(program, "written", lambda report, _: [tmp_path / report.name])
    pages: list[bool] = []
    monkeypatch.setattr(page, "write", lambda: pages.append(True))
    assert program.main(["import", "lineage"]) == 1
    said = capsys.readouterr()
    assert "import: could not be measured" in said.err
    assert "no such interpreter" in said.err
    assert str(tmp_path / "lineage") in said.out
    assert pages == [True], "the page shows what could be measured"
    assert program.main(["lineage", "--quick"]) == 0
    assert pages == [True], "a quick run leaves the page alone"
    with pytest.raises(SystemExit):
        program.main(["lineages"])
    assert "no benchmark lineages" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [BrokenPipeError("gone"), UnicodeEncodeError("ascii", "\u2013", 0, 1, "no such sign")]
)
def test_what_cannot_be_printed_is_written_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise error

    monkeypatch.setattr(program, "measured", lambda name, _: report(name=name))
    monkeypatch.setattr(program, "written", lambda report, _: written(report, tmp_path))
    monkeypatch.setattr(sys, "stdout", Closed())
    assert program.main(["import", "lineage", "--quick"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["import.json", "lineage.json"]
    assert "lineage: measured and written, but not printed" in capsys.readouterr().err


def test_a_file_is_replaced_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is there was measured as well."""
    written(report(), tmp_path)
    before = (tmp_path / "import.json").read_text()
    write_text = Path.write_text

    def half(self: Path, text: str, **options: str) -> int:
        write_text(self, text[:10], **options)
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", half)
        with pytest.raises(OSError, match="no space"):
            written(report(title="Another"), tmp_path)
    assert (tmp_path / "import.json").read_text() == before
    written(report(title="Another"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["import.json"], "nothing is left beside it"


def test_a_peer_that_cannot_be_had_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in the table with its reason; left out, it would look as if nobody had tried."""
    here = peers.install(peers.Peer("json", (), "json", "JSONDecoder"), tmp_path)
    assert (here.problem, here.python) == ("", Path(sys.executable))
    gone = peers.install(peers.Peer("gone", (), "no_such_module", "Operator"), tmp_path)
    assert gone.problem == "cannot be imported: exit code 1: ModuleNotFoundError: No module named 'no_such_module'"
    monkeypatch.setattr(peers, "_ran", lambda *command: "exit code 1: no such release" if "pip" in command else "")
    assert peers.install(peers.Peer("x", ("x==1",), "x", "X"), tmp_path).problem == (
        "cannot be installed: exit code 1: no such release"
    )
    assert not (tmp_path / "x" / "installed.txt").exists(), "tried again the next time"


def test_each_peer_is_measured_on_the_same_airflow_with_pinned_packages() -> None:
    for peer in (peers.ASTRO, peers.GOOGLE):
        assert peers.AIRFLOW in peer.packages
        assert all("==" in package for package in peer.packages)
    assert peers.ASTRO.title == "SubmitRayJob (astro-provider-ray 0.4.0)"
