"""What happens to the cluster and the bucket: drivers crash, clusters are replaced or fall silent, checkpoints break."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider.core.job import EXIT_FAILED
from tests.model.drivers import ends
from tests.model.rules import Move, World
from tests.model.state import DEAD, NOBODY, State, checkpoint_name

MAX_SESSIONS = 2


def moves(s: State, w: World) -> Iterator[Move]:
    if s.is_silent:
        yield Move("the cluster answers again", s._replace(is_silent=False))
    if not s.faults:
        return
    spent = s._replace(faults=s.faults - 1)
    if w.can(s, "crash"):
        for d, x in enumerate(s.drivers):
            if x.pc not in (DEAD, "pending"):
                text = f"driver {d + 1} CRASHES before '{x.pc}'"
                yield Move(text, ends(spent, d, "FAILED", EXIT_FAILED), is_fault=True)
    if w.can(s, "silent") and not s.is_silent:
        yield Move("the cluster gives NO ANSWER", spent._replace(is_silent=True), is_fault=True)
    if w.can(s, "corrupt"):
        yield from _breaks(s, spent)
    if any(a.job for a in s.attempts) and s.session < MAX_SESSIONS:
        yield from _other_clusters(s, spent, w)


def _other_clusters(s: State, spent: State, w: World) -> Iterator[Move]:
    if w.can(s, "replaced"):
        yield Move("the CLUSTER IS REPLACED: all jobs are gone", _forgotten(spent, spares=()), is_fault=True)
    if w.can(s, "moved"):
        text = "the ADDRESS MOVES to a new cluster: running drivers live on, unseen"
        running = tuple(d for d, x in enumerate(s.drivers) if x.pc not in (DEAD, "pending"))
        yield Move(text, _forgotten(spent, spares=running), is_fault=True)


def _breaks(s: State, spent: State) -> Iterator[Move]:
    listed = {c for a in s.attempts for c in a.manifest or ()}
    used = {a.restored for a in s.attempts}
    for c in sorted((listed & s.exist) - s.corrupt - used):
        yield Move(f"checkpoint {checkpoint_name(s, c)} BREAKS", spent._replace(corrupt=s.corrupt | {c}), is_fault=True)


def _forgotten(s: State, *, spares: tuple[int, ...]) -> State:
    attempts = tuple(a._replace(job="", exit=0, driver=NOBODY) for a in s.attempts)
    drivers = tuple(x if d in spares else x._replace(pc=DEAD, read=(), doomed=()) for d, x in enumerate(s.drivers))
    return s._replace(attempts=attempts, drivers=drivers, session=s.session + 1, is_silent=False)
