"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

from sparklog.errors import SparklogError

START_S = 300
"""Longest wait for the start of a broker, which may be slow beside other work."""
PATIENCE_S = 60.0
CLUSTER_PATIENCE_S = 120.0
"""A cluster may elect leaders and a controller meanwhile."""
LOOK_S, LOOK_S_MAX = 0.005, 0.25
LOOK_SHARE = 0.1
"""Looks cost processor time, of brokers as well, that others need: the longer it has lasted, the rarer they are."""


def until(
    condition: Callable[[], object],
    what: str = "the condition",
    *,
    within_s: float = PATIENCE_S,
    passing: tuple[type[Exception], ...] = (),
    look_share: float = LOOK_SHARE,
) -> None:
    """Waits for `condition`; its errors `passing` count as False. `what`: the condition in words, for the failure.
    `look_share`: pause between two looks, as a share of the time so far; 0 for a condition that passes again."""
    began_s = time.monotonic()
    last = ""
    while True:
        try:
            if condition():
                return
        except passing as e:
            last = f" ({e!r})"
        waited_s = time.monotonic() - began_s
        assert waited_s < within_s, f"not within {within_s:.0f} s: {what}{last}"
        time.sleep(min(LOOK_S + look_share * waited_s, LOOK_S_MAX))


def until_reached(condition: Callable[[], object], what: str, *, within_s: float = CLUSTER_PATIENCE_S) -> None:
    """`until` of a condition that asks a cluster: it fails while a broker is away."""
    until(condition, what, within_s=within_s, passing=(SparklogError, OSError))
