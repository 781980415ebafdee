"""`python -m benchmarks NAME ...`: measure, print, write JSON and plot. Without a name: all of them, one after the other.

`python -m benchmarks docs` measures nothing: it writes the results that are there into docs/benchmarks.md, as each full run does.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from benchmarks import page
from benchmarks.options import SCRATCH, Options
from benchmarks.page import ResultUnreadable
from benchmarks.report import Report, printed, written

BENCHMARKS = {
    "import": "import_cost",
    "submit": "submit",
    "recovery": "recovery",
    "goodput": "goodput",
    "triggerer": "triggerer",
    "logs": "logs",
    "lineage": "lineage",
}
"""Name and module, in the order in which they run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; 1 when one could not be measured. A goal that is missed is a result, not an error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it works; writes to .make/bench")
    parser.add_argument("--repeats", type=int, help="rounds to measure instead of the benchmark's own number")
    given = parser.parse_args(arguments)
    if given.names == ["docs"]:
        return 0 if page_written() else 1
    if unknown := [name for name in given.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark {', '.join(unknown)}: there are {', '.join(BENCHMARKS)}")
    if given.repeats is not None and given.repeats < 1:
        parser.error("--repeats must be at least 1")
    # What Airflow makes as it is imported belongs to us, not to the home of whoever measures.
    os.environ.setdefault("AIRFLOW_HOME", str(SCRATCH / "airflow"))
    options = Options(quick=given.quick, num_repeats=given.repeats)
    failed = [name for name in given.names or BENCHMARKS if not shown(name, options)]
    is_written = options.quick or page_written()
    return 1 if failed or not is_written else 0


def page_written() -> bool:
    """Bring the page up to date; whether all results could be read."""
    try:
        page.write()
    except ResultUnreadable as error:
        sys.stderr.write(f"{error}\n")
        return False
    return True


def shown(name: str, options: Options) -> bool:
    """Run one benchmark, write and print its report; whether it could be measured."""
    try:
        sys.stderr.write(f"{name}: measuring\n")
        report = measured(name, options)
        # Before it is printed: a pipe that broke, or a terminal that can't show a sign, must not cost what took hours.
        paths = written(report, options.results)
    except Exception:  # a process edge: the others, which may take hours, are still to be measured
        sys.stderr.write(f"{name}: could not be measured\n{traceback.format_exc()}\n")
        return False
    try:
        sys.stdout.write(printed(report) + "".join(f"  written: {path}\n" for path in paths) + "\n")
        sys.stdout.flush()
    except (OSError, UnicodeError) as error:
        sys.stderr.write(f"{name}: measured and written, but not printed: {error}\n")
    return True


def measured(name: str, options: Options) -> Report:
    """Run one benchmark."""
    report: Report = import_module(f"benchmarks.{BENCHMARKS[name]}").run(options)
    return report


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted: nothing of the benchmark that ran was written")
