"""Tests with many seeds."""

from __future__ import annotations

import os
from typing import Any

SEEDS_VARIABLE = "SPARKLOG_SEEDS"


def seeds(count: int) -> Any:
    """Run a test with the seeds 0 to `count` - 1, as its parameter `seed`. Each seed is a test of its own: pytest's
    report of a failure has the command that runs it again.

    Args:
        count: Number of seeds. The variable SPARKLOG_SEEDS overrides it, for long runs at night.

    Returns:
        The decorator.

    Raises:
        ValueError: The number is below 1.

    Example:
        ```python
        @sparklog.testing.seeds(200)
        def test_orders(sim, seed):
            sim.run(app, seed=seed)
        ```
    """
    import pytest

    text: Any = os.environ.get(SEEDS_VARIABLE, count)
    if isinstance(text, str):
        chosen = int(text) if text.isdecimal() else 0
    else:
        chosen = text if type(text) is int else 0
    if chosen < 1:
        name = "count" if SEEDS_VARIABLE not in os.environ else SEEDS_VARIABLE
        raise ValueError(f"{name} = {text!r}: a number of seeds is needed, at least 1")
    return pytest.mark.parametrize("seed", range(chosen), ids=lambda seed: f"seed={seed}")
