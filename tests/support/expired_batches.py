"""The end of a producer's `delivery.timeout.ms` at a condition rather than at a time."""

from __future__ import annotations

from typing import Any

import pytest

from sparklog.client.producer.outcomes import Entry, Outcomes


def expire_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time of batches be over as soon as an attempt to send them has failed."""
    failed = Outcomes.failed

    def fail_late(self: Outcomes, entry: Entry, *arguments: Any, **named: Any) -> None:
        for batch in entry.batches:
            batch.deadline = 0.0
        failed(self, entry, *arguments, **named)

    monkeypatch.setattr(Outcomes, "failed", fail_late)
