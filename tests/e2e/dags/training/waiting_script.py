"""A script that only waits until a file is there: the lightest job there is, for tests of many at once."""

from __future__ import annotations

import os
import sys
import time

while not os.path.exists(sys.argv[1]):
    time.sleep(0.2)
