"""SIGTERM answered at once, by a thread: the main thread may sit in Ray's C++ code for longer than Ray lets us live."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable


class SigtermWatch:
    """Calls `on_sigterm` in a thread. Python's own handler would only run once the main thread is back in Python."""

    def __init__(self, on_sigterm: Callable[[], None]) -> None:
        """Nothing is installed before `arm`: until then SIGTERM ends the process as usual."""
        self._on_sigterm = on_sigterm
        self._is_ignored = False
        self._write_end: int | None = None

    def arm(self) -> None:
        """Install, or install again: Ray replaces handlers in `ray.init`. From the main thread only."""
        if self._write_end is None:
            read_end, self._write_end = os.pipe()
            os.set_blocking(self._write_end, False)
            threading.Thread(target=self._run, args=(read_end,), name="sigterm", daemon=True).start()
        # The signal's number is written by C code as it arrives, but only for signals with a handler in Python.
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)

    def ignore(self) -> None:
        """From now on SIGTERM does nothing: the end is near anyway."""
        self._is_ignored = True

    def _run(self, read_end: int) -> None:
        while True:
            received = os.read(read_end, 64)
            if signal.SIGTERM in received and not self._is_ignored:
                self._on_sigterm()
