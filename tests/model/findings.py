"""What the exploration found in the rules as the code has them, and what is still so. The docs page tells each story.

A finding has a name of its own, so that it hides nothing else: where it happens the exploration stops following that path.
"""

from __future__ import annotations

SECOND_RUN = "finding: a driver that froze between first look and first sign of life starts over its twin"

FINDINGS = frozenset({SECOND_RUN})
