"""`make chaos`: every pair of target and point, or CHAOS_RUNS of them in the order of SEED; ends with one line of counts.

With RESULTS, a file, the reports outlive the command: pairs that it holds as clean are not run again, and are counted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.chaos.report import Report, read_reports, write_reports
from tests.chaos.run import ChaosRun, unharmed_weights
from tests.chaos.table import chosen, pairs
from tests.stack.process import StackError
from tests.stack.services import Stack

DAGS = Path(__file__).resolve().parents[1] / "e2e" / "dags"


def main() -> int:
    """Run the pairs; 0 only if every fault fired and nothing was lost."""
    options = _parse()
    chosen_pairs = (
        [p for p in pairs() if options.only in p.name]
        if options.only
        else chosen(count=options.runs, seed=options.seed)
    )
    reports = [r for r in read_reports(options.results) if r.verdict.is_clean] if options.results else []
    if not chosen_pairs:
        sys.stderr.write(
            f"No pair's name contains {options.only!r}; one is {pairs()[0].name!r} (docs/chaos.md has all).\n"
        )
        return 2
    known = {report.name for report in reports}
    chosen_pairs = [pair for pair in chosen_pairs if pair.name not in known]
    sys.stdout.write(f"{len(chosen_pairs)} of {len(pairs())} pairs, seed {options.seed}, {len(known)} known as clean\n")
    broken: list[str] = []
    with Stack(dags=[DAGS], is_gated=True) as stack, stack.airflow.client() as airflow:
        weights = unharmed_weights(stack, airflow)
        for number, pair in enumerate(chosen_pairs, 1):
            _say(f"{number:3}/{len(chosen_pairs)} {pair.name} ...")
            try:
                report = ChaosRun(stack, airflow, pair).execute(weights)
            except (AssertionError, StackError) as error:
                broken.append(f"{pair.name}: {error}")
                _say(f"      NOT PROVEN: {error}")
                continue
            reports.append(report)
            _say(_line(report))
            if options.results:
                write_reports(options.results, reports)
    _say(_summary(reports, broken))
    return 0 if not broken and all(r.verdict.is_clean for r in reports) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--runs", type=int, help="how many pairs; default: all")
    parser.add_argument("--seed", type=int, default=0, help="decides the order, and so which ones")
    parser.add_argument("--only", help="pairs whose name contains this, for example 'kill driver'")
    parser.add_argument(
        "--results", type=Path, help="a file of reports to go on with: what it holds as clean is not run"
    )
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _line(report: Report) -> str:
    is_clean = report.verdict.is_clean
    counts = f"{report.tries} tries, {report.attempts} attempts, {report.seconds:.0f} s, struck {report.fault}"
    return f"      {'ok' if is_clean else 'FAILED: ' + '; '.join(report.verdict.sentences())} ({counts})"


def _summary(reports: list[Report], broken: list[str]) -> str:
    verdicts = [r.verdict for r in reports]
    return (
        f"faults injected {len(reports)}, lost checkpoints {sum(len(v.lost) for v in verdicts)}, "
        f"double commits {sum(len(v.double) for v in verdicts)}, orphans {sum(len(v.orphans) for v in verdicts)}, "
        f"other findings {sum(len(v.other) for v in verdicts)}, not proven {len(broken)}"
    )


if __name__ == "__main__":
    sys.exit(main())
