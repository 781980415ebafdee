"""What the exploration found in the rules as the code has them, and what is still so. The docs page tells each story.

A finding has a name of its own, so that it hides nothing else: where it happens the exploration stops following that path.
"""

from __future__ import annotations

RACED_OWN = "finding: a replaced try owns again over a newer try's owner that is not the newest it looked at"
FOREIGN_FINAL = "finding: a final stop that was aimed at an older try ends the current one"
EARLY_MARK = "finding: a mark before a try's first push reaches no listener, and the job before lives on"
SECOND_RUN = "finding: a driver that froze between first look and first sign of life starts over its twin"

FINDINGS = frozenset({RACED_OWN, FOREIGN_FINAL, EARLY_MARK, SECOND_RUN})
