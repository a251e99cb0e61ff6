"""Ends that lie inside no transaction: the rule, and the search for commits in a log."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sparklog.format.batch import decode_header, encode_marker
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.producers.whole_transactions import Commit, atomic_ends, transaction_identity
from tests.support.logs import ManualClock, open_log
from tests.support.producers import end, send_in_transaction

Parts = dict[int, list[Commit]]
NEVER_MS = 2**62


def test_a_held_partition_lowers_the_others() -> None:
    """Partition 1 is held at 5 by an open transaction; (1, 1) is committed behind that there."""
    commits = {
        0: [Commit((1, 1), 3, 6, 70), Commit((2, 1), 2, 4, 60)],
        1: [Commit((1, 1), 7, 8, 70)],
        2: [Commit((2, 1), 0, 0, 60), Commit((3, 1), 1, 1, 10)],
    }
    assert atomic_ends({0: 9, 1: 5, 2: 4}, commits) == ({0: 2, 1: 5, 2: 0}, 10)
    assert atomic_ends({0: 2, 1: 9, 2: 0}, {2: []}) == ({0: 2, 1: 9, 2: 0}, None)


PARTS = st.dictionaries(
    st.integers(0, 2),
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 20), st.integers(0, 5)).map(
            lambda t: Commit((t[0], 1), t[1], t[1] + t[2], t[0])
        ),
        max_size=5,
    ),
)
ENDS = st.fixed_dictionaries({p: st.integers(0, 25) for p in range(3)})


def is_atomic(ends: dict[int, int], commits: Parts) -> bool:
    for transaction in {c.transaction for found in commits.values() for c in found}:
        own = [(p, c) for p, found in commits.items() for c in found if c.transaction == transaction]
        below = [c.last_offset < ends[p] for p, c in own]
        above = [c.first_offset >= ends[p] for p, c in own]
        if not (all(below) or all(above)):
            return False
    return True


@given(ENDS, PARTS)
def test_lowered_ends_cut_no_transaction_and_are_the_highest_such(ends: dict[int, int], commits: Parts) -> None:
    lowered, started_ms = atomic_ends(ends, commits)
    assert is_atomic(lowered, commits)
    assert all(lowered[p] <= ends[p] for p in ends)
    behind = [c.started_ms for p, found in commits.items() for c in found if c.first_offset >= lowered[p]]
    assert started_ms == min(behind, default=None), "all transactions behind the ends are counted, and no other"
    candidates = [
        sorted({ends[p], *(o for c in commits.get(p, ()) if (o := c.first_offset) <= ends[p])}) for p in sorted(ends)
    ]
    for chosen in product(*candidates):
        other = dict(enumerate(chosen))
        if is_atomic(other, commits):
            assert all(other[p] <= lowered[p] for p in ends)


@given(ENDS, ENDS, PARTS)
def test_ends_never_go_back(ends: dict[int, int], more: dict[int, int], commits: Parts) -> None:
    """A reader that asks again never gets ends before its last ones."""
    later = {p: ends[p] + more[p] for p in ends}
    lowered = atomic_ends(ends, commits).ends
    assert all(lowered[p] <= atomic_ends(later, commits).ends[p] for p in ends)


def test_commits_are_listed_from_an_append_time_on(tmp_path: Path) -> None:
    """Several segments; the times of the appends are 1, 2, ..., one per batch or marker."""
    clock = ManualClock(0)
    log = open_log(tmp_path, {"segment.bytes": 4096}, clock=clock)
    started: dict[int, int] = {}
    expected: list[tuple[int, Commit]] = []
    for number in range(12):
        producer = 1 + number
        clock.time_ms = 10 * number + 1
        started[producer] = 10 * number
        first = send_in_transaction(log, producer, 0, epoch=1).base_offset
        clock.time_ms += 1
        last = send_in_transaction(log, producer, 1, epoch=1).last_offset
        clock.time_ms += 1
        committed = number % 3 != 2
        info = log.appender.append_marker(producer, 2, 0, commit=committed, started_ms=10 * number)
        log.raise_high_watermark(log.log_end_offset)
        if committed:
            expected.append((info.last_offset, Commit((producer, 1), first, last, 10 * number)))
    assert log.segment_count > 3
    assert log.reader.commits(0, NEVER_MS) == log.reader.commits(log.log_end_offset, 0) == [c for _, c in expected]
    assert log.reader.commits(log.log_end_offset, NEVER_MS) == []
    for number in range(12):
        behind = [c for _, c in expected if c.started_ms >= 10 * number]
        assert log.reader.commits(log.log_end_offset, 10 * number) == behind
        assert log.reader.commits(36 * number // 12, NEVER_MS) == behind, "by the offset alone"


def test_the_newest_commit_is_remembered_without_reading(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert not log.reader.has_commits_behind(0)
    send_in_transaction(log, 7, 0)
    end(log, 7, 1, commit=False)
    assert not log.reader.has_commits_behind(0), "an aborted transaction does not count"
    send_in_transaction(log, 8, 0)
    assert not log.reader.has_commits_behind(log.last_stable_offset), "nothing is committed behind the open one"
    send_in_transaction(log, 9, 0)
    end(log, 9, 1, commit=True)
    assert log.reader.has_commits_behind(log.last_stable_offset)
    log.close()
    log = open_log(tmp_path)
    log.raise_high_watermark(log.log_end_offset)
    assert log.reader.has_commits_behind(log.last_stable_offset), "nor does a restart forget it"
    end(log, 8, 1, commit=True)
    assert not log.reader.has_commits_behind(log.last_stable_offset)


def test_transactions_of_a_kept_epoch_differ_by_their_begin() -> None:
    def identity(epoch: int, marker_epoch: int, started_ms: int) -> tuple[int, int]:
        data = encode_marker(
            ENVELOPE_SCHEMA, schema_id=0, producer_id=7, producer_epoch=marker_epoch, coordinator_epoch=0,
            commit=True, timestamp_ms=9_000, started_ms=started_ms,
        )  # fmt: skip
        return transaction_identity(decode_header(data), epoch)

    assert identity(3, 3, 1_000) == identity(3, 3, 1_000) != identity(3, 3, 2_000)
    assert identity(3, 4, 1_000) == identity(3, 4, 2_000) != identity(4, 5, 2_000)
