"""The broker's rule about producers' batches in one partition, as docs/internals/delivery.md states it in section 2."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from sparklog.errors import InvalidProducerEpochError, OutOfOrderSequenceError

REMEMBERED = 5
SEQUENCES = 2**31


class BrokerRule:
    """Checks batches (anything with producer_id, producer_epoch, base_sequence and record_count), a payload at a time."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._batches: dict[int, deque[tuple[int, int, int]]] = {}

    def check(self, payload: Sequence[Any]) -> dict[int, int]:
        """Offsets of those that are there already, by base sequence. Raises what the whole payload is refused with."""
        known: dict[int, int] = {}
        epochs, following = dict(self._epochs), {}
        for batch in payload:
            pid, first = batch.producer_id, batch.base_sequence
            epoch = epochs.get(pid)
            if epoch is not None and batch.producer_epoch < epoch:
                raise InvalidProducerEpochError(f"epoch {batch.producer_epoch} after {epoch}")
            remembered = self._batches.get(pid, deque()) if batch.producer_epoch == self._epochs.get(pid) else deque()
            found = next((o for s, n, o in remembered if (s, n) == (first, batch.record_count)), None)
            if found is not None:
                known[first] = found
                continue
            if epoch is not None and batch.producer_epoch > epoch:
                expected = 0
            elif pid in following:
                expected = following[pid]
            elif remembered:
                expected = (remembered[-1][0] + remembered[-1][1]) % SEQUENCES
            else:
                expected = first
            if first != expected:
                raise OutOfOrderSequenceError(f"sequence {first}, {expected} was due")
            epochs[pid] = batch.producer_epoch
            following[pid] = (first + batch.record_count) % SEQUENCES
        return known

    def note(self, batch: Any, offset: int) -> None:
        """The batch has been appended at `offset`."""
        pid = batch.producer_id
        if self._epochs.get(pid) != batch.producer_epoch:
            self._batches[pid] = deque(maxlen=REMEMBERED)
        self._epochs[pid] = batch.producer_epoch
        self._batches[pid].append((batch.base_sequence, batch.record_count, offset))
