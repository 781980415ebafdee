"""Answers that were made once: who asks again for the same facts costs no rendering, however many they are."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from airflow_provider.plugin.view.facts import Problem, Recorded, Seen

CACHED_BYTES = 16_000_000
"""Of all answers: some hundred pages with a hundred checkpoints each."""
_SLOT_BYTES = 1_000
"""What an answer takes beside its body and its key."""


@dataclass(frozen=True)
class Answer:
    """A body with its status and etag. The etag is the body's own: every API server gives the same one."""

    body: bytes
    status: int
    etag: str

    @classmethod
    def of(cls, text: str, *, status: int = 200) -> Answer:
        """The answer with this text. What no encoding has becomes a question mark."""
        body = text.encode("utf-8", "replace")
        return cls(body, status, f'W/"{hashlib.sha256(body).hexdigest()[:32]}"')


def facts_key(recorded: Recorded, seen: Seen | None, problem: Problem | None) -> bytes:
    """A digest of all that a page is made of but the reader's choice. Cheap: it never looks at a checkpoint.

    Time counts only where something is still open; when it was read only where a word about that is on the page.
    """
    is_from_xcom = seen is not None and seen.is_from_xcom
    shown = recorded if is_from_xcom else replace(recorded, lineage=None)
    facts = None
    if seen is not None:
        version = None if is_from_xcom else seen.version
        is_open = recorded.is_live or seen.is_open
        facts = (version, seen.as_of if is_open else None, seen.read_at if problem else None)
    return hashlib.sha256(repr((shown, facts, problem)).encode("utf-8", "surrogatepass")).digest()


@dataclass
class _Slot:
    answer: Answer | None = None
    num_bytes: int = 0
    """As counted: an answer that was made may be dropped before."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Answers:
    """The newest answers by what they were made of. Threads that ask for the same one wait for the first to make it."""

    def __init__(self, *, limit: int = CACHED_BYTES) -> None:
        """Answers and their keys together take at most `limit` bytes, or there is only one."""
        self._limit = limit
        self._slots: OrderedDict[object, _Slot] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def get(self, key: object, make: Callable[[], Answer]) -> Answer:
        """The answer to `key`, made by `make` if nobody has made it yet. An error of `make` is the caller's alone."""
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
        with slot.lock:
            if slot.answer is None:
                try:
                    slot.answer = make()
                finally:
                    self._count(key, slot)
            return slot.answer

    def _count(self, key: object, slot: _Slot) -> None:
        with self._lock:
            if slot.answer is None:
                if self._slots.get(key) is slot:
                    del self._slots[key]
                return
            if self._slots.get(key) is slot:
                slot.num_bytes = _size(key, slot.answer)
                self._num_bytes += slot.num_bytes
            while self._num_bytes > self._limit and len(self._slots) > 1:
                self._num_bytes -= self._slots.popitem(last=False)[1].num_bytes


def _size(key: object, answer: Answer) -> int:
    """A reader's choice is part of the key, and may be longer than the body."""
    return len(answer.body) + len(repr(key)) + _SLOT_BYTES
