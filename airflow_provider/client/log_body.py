"""Read `{"logs": "..."}` piece by piece, so that a log of gigabytes costs no more memory than its last lines. Pure."""

from __future__ import annotations

import codecs
import json
import re
from collections import deque

from airflow_provider.client.log_place import count_in_lines
from airflow_provider.client.values import LogPart

_START = re.compile(r'^\s*\{\s*"logs"\s*:\s*"')
_STRING = re.compile(r'(?:[^"\\]+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")
_MAX_HEAD = 4096
_MAX_ESCAPE = 6


class NotALog(Exception):
    """The body is not Ray's log answer; `head` holds what came first."""

    def __init__(self, head: bytes) -> None:
        """Keep the first bytes for the ordinary reading of answers."""
        super().__init__("not a log body")
        self.head = head


class LogBody:
    """Feed bytes, then take the part after `position`, at most the last `max_chars` of it."""

    def __init__(self, *, position: int, max_chars: int) -> None:
        """Start before the first byte."""
        self._start, self._max_chars = position, max_chars
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._head = bytearray()
        self._seen = self._num_in_lines = 0
        self._is_open = False
        self.is_done = False
        self._kept: deque[str] = deque()
        self._num_kept = 0
        self._num_dropped = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            NotALog: they can't be part of a log answer.

        """
        if self.is_done:
            return
        if not self._is_open and len(self._head) < _MAX_HEAD:
            self._head += data[: _MAX_HEAD - len(self._head)]
        self._pending += self._decoder.decode(data)
        if not self._is_open:
            match = _START.match(self._pending)
            if match is None:
                if len(self._pending) > _MAX_HEAD:
                    raise NotALog(bytes(self._head))
                return
            self._is_open, self._pending = True, self._pending[match.end() :]
        self._take()

    def finish(self) -> LogPart:
        """Give what was kept.

        Raises:
            NotALog: the body ended before a log began.

        """
        if not self._is_open:
            raise NotALog(bytes(self._head))
        text = "".join(self._kept)
        return LogPart(
            text=text,
            position=max(self._seen, self._start),
            num_in_lines=self._num_in_lines,
            num_dropped=self._num_dropped,
            is_complete=self.is_done,
        )

    def _take(self) -> None:
        match = _STRING.match(self._pending)
        end = match.end() if match else 0
        part, rest = self._pending[:end], self._pending[end:]
        if rest.startswith('"'):
            self.is_done, self._pending = True, ""
        else:
            if len(rest) >= _MAX_ESCAPE:
                raise NotALog(bytes(self._head))
            # The second half of a surrogate pair may be in the next piece; decoded alone it would be lost.
            high = _HIGH_SURROGATE.search(part)
            if high:
                part, rest = part[: high.start()], part[high.start() :] + rest
            self._pending = rest
        self._keep(json.loads(f'"{part}"', strict=False))

    def _keep(self, text: str) -> None:
        skip = max(0, self._start - self._seen)
        self._seen += len(text)
        self._num_in_lines += count_in_lines(text)
        text = text[skip:]
        if not text:
            return
        self._kept.append(text)
        self._num_kept += len(text)
        while self._num_kept > self._max_chars:
            over = self._num_kept - self._max_chars
            first = self._kept.popleft()
            dropped = first[:over]
            if len(first) > over:
                self._kept.appendleft(first[over:])
            self._num_kept -= len(dropped)
            self._num_dropped += len(dropped)
