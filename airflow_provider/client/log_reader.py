"""Lines of a log that is read again and again, each once. Pure."""

from __future__ import annotations

import json
from dataclasses import replace

from airflow_provider.client.log_place import LogPlace, Skip, count_in_lines
from airflow_provider.client.log_text import LogCleaner
from airflow_provider.client.values import LogPart

EMPTY_LOG = len(json.dumps({"logs": ""}))
"""Bytes of Ray's answer for a log without text."""
MAX_PARTIAL = 64_000
"""Longest line, in characters, that is held back until its end comes."""


class LogReader:
    """Keeps our place in a log that is replayed from the start. Memory is bounded by `max_partial`."""

    def __init__(self, *, position: int = 0, max_partial: int = MAX_PARTIAL) -> None:
        """Go on behind `position` characters."""
        self.position = position
        """Characters consumed: all before it was given out, nothing behind it."""
        self.furthest = position
        """Characters ever received; larger than `position` while a line is incomplete."""
        self._max_partial = max_partial
        self._place, self._skip = LogPlace(), Skip()
        self._num_untold = position
        """Characters before a position that came from elsewhere which no replay has shown yet."""
        self._seen = 0
        self._num_bytes = EMPTY_LOG
        self._partial = ""
        self._is_dropping = False
        self._cleaner = LogCleaner()

    @property
    def safe_position(self) -> int:
        """From where a file is read for `finish` and `catch_up`, so that nothing behind our place is left out."""
        return self.position if self._num_untold else max(0, self.position - self._place.num_empty)

    def begin(self) -> None:
        """Start of a session: the server sends all from the first character again."""
        self._seen, self._num_bytes, self._partial = 0, EMPTY_LOG, ""
        if self._num_untold:
            self._num_untold, self._place = self.position, LogPlace()
        self._skip = Skip(self._place.num_in_lines, self._place.num_ends)

    def feed(self, text: str) -> list[str]:
        """Take the next characters; gives the whole lines that are new."""
        self._seen += len(text)
        self._num_bytes += len(json.dumps(text)) - 2
        self.furthest = max(self.furthest, self._seen)
        text = self._partial + self._behind_place(text)
        cut = text.rfind("\n") + 1
        whole, self._partial = text[:cut], text[cut:]
        self._consume(whole)
        if whole and self._is_dropping:
            whole, self._is_dropping = whole.partition("\n")[2], False
        lines = self._cleaner.lines(whole) if whole else []
        return lines + self._bound_partial()

    def flush(self) -> list[str]:
        """Show progress bars that are held back."""
        return self._cleaner.flush()

    def catch_up(self, part: LogPart) -> list[str]:
        """Take what was read from the file of a job that goes on; an incomplete last line stays for the next time."""
        cut = part.text.rfind("\n") + 1
        num_left = len(part.text) - cut
        self.furthest = max(self.furthest, part.position)
        place, num_in_lines = part.position - num_left, part.num_in_lines - num_left
        whole = replace(part, text=part.text[:cut], position=place, num_in_lines=num_in_lines)
        return self.finish(whole) if cut else []

    def finish(self, part: LogPart) -> list[str]:
        """Take the rest of the log, read at once from `safe_position` or from before it; its last line may lack an end."""
        text = self._unread(part)
        if self._is_dropping and part.num_dropped == 0:
            text = text.partition("\n")[2]
        self._is_dropping, self._partial, self._num_untold = False, "", 0
        self._place.advance(text)
        self._place.num_in_lines = max(self._place.num_in_lines, part.num_in_lines)
        self.position = max(self.position, part.position)
        return [*(self._cleaner.lines(text) if text else []), *self._cleaner.flush()]

    def rest_if(self, size: int | None) -> LogPart | None:
        """What is behind our place, if the last session sent all of a log whose answer has so many bytes; else None.

        A session begins at the log's start, and a log only grows: what is as long as the log is all of it.
        """
        if size != self._num_bytes or self._seen != self.position + len(self._partial) or self._num_untold:
            return None
        return LogPart(self._partial, self._seen, self._place.num_in_lines + len(self._partial))

    def _behind_place(self, text: str) -> str:
        """What of a session's next characters is new."""
        if not self._num_untold:
            return self._skip.behind(text)
        head, text = text[: self._num_untold], text[self._num_untold :]
        self._num_untold -= len(head)
        self._place.advance(head)
        return text

    def _unread(self, part: LogPart) -> str:
        """What of a part is new; it may begin before our place, or behind it where something was dropped."""
        num = self._place.num_in_lines - (part.num_in_lines - count_in_lines(part.text))
        return part.text if self._num_untold or num < 0 else Skip(num, self._place.num_ends).behind(part.text)

    def _consume(self, text: str) -> None:
        self.position += len(text)
        self._place.advance(text)

    def _bound_partial(self) -> list[str]:
        if len(self._partial) <= self._max_partial:
            return []
        partial, self._partial = self._partial, ""
        self._consume(partial)
        if self._is_dropping:
            return []
        self._is_dropping = True
        return self._cleaner.lines(partial)
