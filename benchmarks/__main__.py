"""`python -m benchmarks NAME ...`: measure, print, write JSON and plot. Without a name: all of them, one after the other.

`python -m benchmarks docs` measures nothing: it writes the results that are there into docs/benchmarks.md, as each full run does.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from benchmarks import page
from benchmarks.options import Options
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
        page.write()
        return 0
    if unknown := [name for name in given.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark {', '.join(unknown)}: there are {', '.join(BENCHMARKS)}")
    if given.repeats is not None and given.repeats < 1:
        parser.error("--repeats must be at least 1")
    options = Options(quick=given.quick, num_repeats=given.repeats)
    failed = [name for name in given.names or BENCHMARKS if not shown(name, options)]
    if not options.quick:
        page.write()
    return 1 if failed else 0


def shown(name: str, options: Options) -> bool:
    """Run one benchmark, print and write its report; whether that could be done."""
    try:
        report = measured(name, options)
        sys.stdout.write(printed(report))
        for path in written(report, options.results):
            sys.stdout.write(f"  written: {path}\n")
    except Exception:  # a process edge: the others, which may take hours, are still to be measured
        sys.stderr.write(f"{name}: could not be measured\n{traceback.format_exc()}\n")
        return False
    sys.stdout.write("\n")
    sys.stdout.flush()
    return True


def measured(name: str, options: Options) -> Report:
    """Run one benchmark."""
    report: Report = import_module(f"benchmarks.{BENCHMARKS[name]}").run(options)
    return report


if __name__ == "__main__":
    sys.exit(main())
