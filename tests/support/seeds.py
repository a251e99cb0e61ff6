"""The seeds of simulated lives: two fixed ones in the gate, a window that moves with the date in the whole run."""

from __future__ import annotations

import os
import time

SEED_BASE_VARIABLE = "TEST_SEED_BASE"
"""Name of the environment variable that repeats the window of an earlier run."""
GATE_SEEDS = 2
"""Lives of each kind in `make test`."""
WINDOW_SEEDS = 15
"""Lives of each kind in `make test-all`."""

# Workers inherit the variable: all of them have the window of the process that started them, also past midnight.
os.environ.setdefault(SEED_BASE_VARIABLE, str(int(time.time()) // 86_400 * 1_000))
SEED_BASE = int(os.environ[SEED_BASE_VARIABLE])
