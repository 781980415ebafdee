"""`python -m tests.model`: explore all configurations with their large bounds, then show that each mistake is found."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.model.configurations import CONFIGURATIONS
from tests.model.explore import Exploration, explore, find
from tests.model.mistakes import MISTAKES


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def show_trace(title: str, trace: Sequence[str]) -> None:
    say(f"\n{title} ({len(trace)} steps)")
    for number, text in enumerate(trace, 1):
        say(f"  {number:3d}. {text}")


def progress(found: Exploration) -> None:
    if sys.stderr.isatty():
        line = f"{found.world.bounds.name}: {found.states:,} states, depth {found.depth}, {found.seconds:.0f} s"
        sys.stderr.write(f"\r{line:<78}\r")


HEAD = f"{'configuration':<20}{'states':>10}{'transitions':>13}{'depth':>7}{'seconds':>9}  violations"


def row(found: Exploration) -> str:
    name, numbers = found.world.bounds.name, f"{found.states:>10,}{found.transitions:>13,}{found.depth:>7}"
    cut = "" if found.is_complete else " (cut)"
    known = f", {len(found.known)} open findings" if found.known else ""
    return f"{name:<20}{numbers}{found.seconds:>9.1f}  {len(found.violations)}{known}{cut}"


def run_configurations(names: Sequence[str], *, is_small: bool, shows_findings: bool) -> bool:
    rows, is_good = [], True
    for name in names:
        configuration = CONFIGURATIONS[name]
        say(f"exploring {name}: {configuration.small.about} ...")
        found = explore(configuration.small if is_small else configuration.large, progress=progress)
        rows.append(row(found))
        say(row(found))
        for violation, trace in found.violations.items():
            is_good = False
            show_trace(violation, trace)
        if shows_findings:
            for violation, trace in found.known.items():
                show_trace(violation, trace)
    say("\n" + "\n".join([HEAD, *rows]))
    return is_good


def run_mistakes() -> bool:
    is_good = True
    say(f"\n{'seeded mistake':<40}{'story':>6}  found after")
    for mistake in MISTAKES.values():
        found = find(mistake.bounds, mistake.name, mistake.finds)
        hit = next((v for v in found.violations if v.startswith(mistake.finds)), None)
        is_good = is_good and hit is not None
        steps = f"{len(found.violations[hit])} steps: {hit}" if hit else f"NOT FOUND {list(found.violations)}"
        say(f"{mistake.name:<40}{mistake.story or '':>6}  {steps}")
    return is_good


def run_seed(name: str) -> bool:
    mistake = MISTAKES[name]
    say(f"seeded mistake: {mistake.about}; configuration {mistake.configuration}")
    found = find(mistake.bounds, name, mistake.finds)
    hits = {v: trace for v, trace in found.violations.items() if v.startswith(mistake.finds)}
    for violation, trace in hits.items():
        show_trace(violation, trace)
    return bool(hits)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="configuration", help=f"of {', '.join(CONFIGURATIONS)}")
    parser.add_argument("--small", action="store_true", help="the bounds of the tests")
    parser.add_argument("--findings", action="store_true", help="print the traces of open findings")
    parser.add_argument("--seed", choices=list(MISTAKES), help="print the shortest trace with this mistake")
    options = parser.parse_args()
    if options.seed:
        return 0 if run_seed(options.seed) else 1
    began = time.monotonic()
    names = options.names or list(CONFIGURATIONS)
    is_good = run_configurations(names, is_small=options.small, shows_findings=options.findings)
    if not options.names:
        is_good = run_mistakes() and is_good
    say(f"\n{'all as it should be' if is_good else 'NOT AS IT SHOULD BE'} in {time.monotonic() - began:.0f} s")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
