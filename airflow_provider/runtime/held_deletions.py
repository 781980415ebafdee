"""What retention deletes waits until it is judged whether the restore was real.

Ray deletes by `num_to_keep` as it commits a report, before any callback sees that report. With the first report of a loop
that ignored its checkpoint it would delete what the next attempt needs. So in the controller's process every deletion is held
back from each start of workers to their first report, and then carried out, or never: not only that of the restored
checkpoint, since with more to keep, or with a score, such a report pushes out others.

Known limitation: a controller that dies between the two leaves what was held back. No manifest lists it as the newest; it is
neither restored unasked nor deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from airflow_provider.core.fit_rules import prove_restore

logger = logging.getLogger(__name__)

_HELD: dict[Hashable, list[Callable[[], object]]] = {}
"""By fence, for this process: Ray unpickles another filesystem with each reported checkpoint, so none of them can keep it."""


def is_held(fence: Hashable, deletion: Callable[[], object]) -> bool:
    """Whether a deletion has to wait; then it is remembered."""
    held = _HELD.get(fence)
    if held is None:
        return False
    held.append(deletion)
    return True


class RestoreWatch:
    """Holds deletions behind one fence back while it is open whether the workers went on from their checkpoint."""

    def __init__(self, fence: Hashable, *, declared: str | None) -> None:
        """`declared` is the progress metric: a guessed one accuses nobody."""
        self.fence, self.declared = fence, declared
        self.has_begun = False
        self._base: Mapping[str, Any] | None = None
        self._may_delete = False

    def begin(self, restored: Mapping[str, Any] | None) -> None:
        """Metrics of the checkpoint that the next workers get. Before they are known nothing is deleted.

        What was held back by then stays: nobody could judge what replaced it.
        """
        _HELD.pop(self.fence, None)
        self._base, self._may_delete, self.has_begun = restored, True, True

    def workers_started(self) -> None:
        """They have a checkpoint to go on from: hold back."""
        _HELD.setdefault(self.fence, [])

    def first_report(self, metrics: Mapping[str, Any]) -> None:
        """Judge as the driver does. After a fall nothing is deleted any more: the driver is about to end."""
        if self._base is not None:
            proof = prove_restore(self._base, metrics, declared=self.declared)
            self._may_delete &= proof.fallen_metric is None
        if self._may_delete:
            self._carry_out()

    def committed(self, metrics: Mapping[str, Any]) -> None:
        """Metrics of the newest checkpoint: what workers get after a restart."""
        self._base = metrics

    def _carry_out(self) -> None:
        for deletion in _HELD.pop(self.fence, []):
            try:
                deletion()
            except Exception:  # process edge: Ray's own deletions log and go on, whatever the store says
                logger.exception("What retention had dropped could not be deleted; training goes on")
