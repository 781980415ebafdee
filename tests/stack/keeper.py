"""Holds one service's whole process tree, so that nothing of it can outlive its owner.

Run as a script by `process.py` with only the standard library. It starts the service in a session of its own and declares itself the
*subreaper* of everything below: a daemon that forks twice, or a Ray worker whose raylet was killed, is re-parented to this process and
not to init. So "the tree" stays exact, without names, pid files or matching of command lines.

Orders come as lines on stdin. End of file means that the owner is gone (also by SIGKILL): the tree is stopped at once, and the scratch directory that the
owner can no longer remove goes too.
Linux only (`prctl`); elsewhere orphans of a killed parent are not found.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.1
_ORPHANED_GRACE_S = 3.0


def become_subreaper() -> None:
    """Adopt every orphan below this process; without Linux' prctl that is left out."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Pids of all processes below `root`, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError):
                # The name in brackets may hold spaces: fields count from the last bracket.
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def send(pid: int, number: int) -> None:
    """Signal one process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Keeper:
    """The service's main process, and the orders that can be given about its tree."""

    def __init__(self, argv: list[str], user: int | None) -> None:
        """Start `argv`; stdout and stderr are the keeper's stderr, which is the service's log file."""
        self.main = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=2,
            stderr=2,
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        ).pid
        self.main_status: int | None = None

    def reap(self) -> bool:
        """Collect what ended; true once nothing is left below."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.main:
                self.main_status = os.waitstatus_to_exitcode(status)

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Whether the tree emptied within the time."""
        deadline = time.monotonic() + timeout_s
        while not self.reap():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def kill_all(self) -> None:
        """SIGKILL until nothing is left: a process may fork while we look."""
        while not self.wait_until_empty(0.05):
            for pid in descendants(os.getpid()):
                send(pid, signal.SIGKILL)

    def stop(self, number: int, grace_s: float) -> None:
        """Ask the main process, give it time, then kill what is left."""
        if self.main_status is None:
            send(self.main, number)
            self.wait_until_empty(grace_s)
        self.kill_all()

    def obey(self, order: list[str]) -> None:
        """Carry out one order: `stop SIGNAL GRACE_S`, `kill` (the tree) or `kill-main` (that process alone)."""
        match order:
            case ["stop", number, grace_s]:
                self.stop(int(number), float(grace_s))
            case ["kill"]:
                self.kill_all()
            case ["kill-main"] if self.main_status is None:
                send(self.main, signal.SIGKILL)
            case _:
                pass


def main() -> int:
    """Keep the service until its tree is empty; the exit code is 0 whatever the service's own was."""
    parser = argparse.ArgumentParser(description="Hold one service's process tree.")
    parser.add_argument("--user", type=int)
    parser.add_argument("--scratch", help="a directory to remove if the owner is gone")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C is the owner's to answer
    become_subreaper()
    keeper = Keeper(options.command, options.user)

    def end(_number: int, _frame: object) -> None:
        keeper.kill_all()
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    os.write(1, f"{keeper.main}\n".encode())
    pending = b""
    while not keeper.reap():
        if not select.select([0], [], [], _TICK_S)[0]:
            continue
        chunk = os.read(0, 4096)
        if not chunk:
            keeper.stop(signal.SIGTERM, _ORPHANED_GRACE_S)
            if options.scratch:
                shutil.rmtree(options.scratch, ignore_errors=True)
            break
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            keeper.obey(line.decode().split())
    return 0


if __name__ == "__main__":
    sys.exit(main())
