"""Benchmark 7's report from samples: goals at their limits, and a store that fails after the driver's first request."""

from __future__ import annotations

import http.server
import threading
import time
import urllib.request
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import lineage
from benchmarks.measure import Sample
from benchmarks.plot import drawn
from benchmarks.report import Report, printed, written
from tests.stack.gate import Gate
from tests.unit.benchmarks.test_framework import MACHINE

SIZES = (100, 1_000)


def reading(order: float) -> dict[str, list[Sample]]:
    sample = {n: {"s": 1e-4 * n**order, "mib": 0.0, "calls": 36, "xcom_s": 0.01} for n in SIZES}
    return {f"{side} {n}": [sample[n]] * 2 for side in lineage.READING for n in SIZES}


def recording(longest_s: float) -> dict[str, list[Sample]]:
    sample = {"report_s": 0.0004, "longest_report_s": longest_s, "step_s": 1.001, "recorded": 18}
    return {side: [sample] * 2 for side in lineage.RECORDING}


def test_a_quadratic_reading_and_a_stalled_report_miss_their_goals() -> None:
    assert [goal.is_met for goal in lineage.reading_goals(reading(1.0), SIZES)] == [True] * 5
    assert [goal.is_met for goal in lineage.reading_goals(reading(2.0), SIZES)] == [False, True, False, True, True]
    assert [goal.is_met for goal in lineage.recording_goals(recording(0.002), step_s=1.0)] == [True] * 3
    assert [goal.is_met for goal in lineage.recording_goals(recording(5.0), step_s=1.0)] == [True, False, False]


def test_the_whole_report_can_be_printed_drawn_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory of nothing has no place on a logarithmic axis, and must not keep the rest from it."""
    samples = [reading(1.0), recording(0.002)]
    monkeypatch.setattr(lineage, "alternating", lambda *_: samples.pop(0))
    monkeypatch.setattr(lineage, "_server", lambda _: nullcontext(SimpleNamespace(port=1)))
    monkeypatch.setattr(lineage, "Gate", lambda _: nullcontext())
    monkeypatch.setattr(lineage, "_reading_sides", lambda *_: {})
    monkeypatch.setattr(lineage, "_recording_sides", lambda *_: {})
    monkeypatch.setattr(lineage, "SCRATCH", tmp_path)
    monkeypatch.setattr(lineage, "this_machine", lambda: MACHINE)
    found: Report = lineage.run(lineage.Options(quick=True))
    assert "recorded, the store is away" in printed(found)
    assert "order 1.00" in drawn(found.plots)
    assert len(written(found, tmp_path)) == 2


class Quiet(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # the name that http.server calls
        self.send_response(204)
        self.end_headers()

    do_PUT = do_GET  # noqa: N815 - the name that http.server calls

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("name", ["healthy", "slow", "away"])
def test_the_first_request_passes_and_the_next_finds_the_store_as_named(name: str) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with Gate(server.server_address[1]) as gate:
            gate.on_answer = partial(lineage._fault, gate, name, "s3://models/recording/now")
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            for left_over in ("GET", "PUT"):  # by the side before, which hung in the gate
                request = urllib.request.Request(f"{gate.url}/models/recording/then/alive.json", method=left_over)
                assert opener.open(request, timeout=30).status == 204
                assert gate.is_open
                assert gate.delay_s == 0
            alive = urllib.request.Request(f"{gate.url}/models/recording/now/alive.json", method="PUT")
            assert opener.open(alive, timeout=30).status == 204
            if name == "slow":
                assert gate.delay_s == lineage.HANG_S
            elif name == "away":
                while gate.is_open:
                    time.sleep(0.01)
                with pytest.raises(OSError, match=r"refused|reset|closed"):
                    opener.open(gate.url, timeout=30)
            else:
                assert opener.open(gate.url, timeout=30).status == 204
    finally:
        server.shutdown()
        server.server_close()
