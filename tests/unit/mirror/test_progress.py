"""The progress of a mirrored partition."""

from __future__ import annotations

from sparklog.mirror.worker.sync import PartitionState


def test_the_wait_for_a_transaction_counts_from_its_first_sight_and_ends_with_it() -> None:
    state = PartitionState()
    state.note_source(8, 8, now_s=1.0)
    assert state.held == 0
    for now_s, end in ((2.0, 9), (5.0, 11)):
        state.note_source(end, 8, now_s)
    assert (state.held, state.held_since_s) == (3, 2.0)
    state.note_source(12, 10, now_s=6.0)  # the transaction has ended, and another one is open
    assert (state.held, state.held_since_s) == (2, 6.0)
    state.note_source(12, 12, now_s=7.0)
    state.note_source(13, 12, now_s=9.0)
    assert (state.held, state.held_since_s) == (1, 9.0)
