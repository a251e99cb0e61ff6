"""Histories on paper: the entries of a Recorder are read again after a kill at any moment."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.campaigns.checker.analysis import Anomaly, analyse
from tests.campaigns.checker.history import (
    NEVER_NS,
    HistoryError,
    Kind,
    Operation,
    Outcome,
    Polled,
    Recorder,
    Sent,
    parse_history,
    read_history,
)
from tests.campaigns.checker.report import report
from tests.support.cases import for_each


def written(file: io.BytesIO) -> None:
    """A send, a transaction that is committed, one that is aborted, and one that nobody ended."""
    recorder = Recorder(file, "p1", group="g", clock=itertools.count(1).__next__)
    recorder.end(recorder.begin(Kind.SEND, [("t-0", [1, 2])]), Outcome.OK, [[10, 11]])
    for commit in (True, False):
        operation = recorder.begin(Kind.TRANSACTION)
        recorder.polls(operation, [("t-0", [10], [1])])
        recorder.sends(operation, [("u-0", [3 if commit else 4], [1])])
        recorder.offsets(operation, {"t-0": 11})
        recorder.ending(operation, commit=commit)
        recorder.end(operation, Outcome.OK if commit else Outcome.FAILED, [[0 if commit else 2]])
    recorder.sends(recorder.begin(Kind.TRANSACTION), [("u-0", [5], [2])])


def test_written_records_are_read(tmp_path: Path) -> None:
    with (tmp_path / "p1.jsonl").open("xb", buffering=0) as file:
        written(file)  # type: ignore[arg-type]
    send, committed, aborted, left = read_history(tmp_path.iterdir())
    assert send == Operation(
        "p1", 1, Kind.SEND, Outcome.OK, 1, NEVER_NS, 2, (Sent("t-0", [1, 2], [10, 11], [-1, -1]),), {}, "g"
    )
    assert committed.steps == (Polled("t-0", [10], [1], 4), Sent("u-0", [3], [0], [1]))
    assert (committed.begun_ns, committed.commit_asked_ns, committed.ended_ns) == (3, 7, 8)
    assert committed.offsets == {"t-0": 11}
    assert [o.outcome for o in (committed, aborted, left)] == [Outcome.OK, Outcome.FAILED, Outcome.FAILED]
    assert aborted.sends == [Sent("u-0", [4], [2], [1])]


def test_every_beginning_of_a_file_can_be_read() -> None:
    """Killed at any byte: the operations that had ended are whole, the one under way is unknown or undone."""
    file = io.BytesIO()
    written(file)
    content = file.getvalue()
    whole = parse_history(content)
    for size in range(len(content)):
        before = parse_history(content[:size])
        assert before[:-1] == whole[: max(0, len(before) - 1)]
        for operation in before[-1:]:
            at_last = whole[len(before) - 1]
            assert operation == at_last or operation.ended_ns == NEVER_NS
            assert operation == at_last or operation.outcome is not Outcome.OK


@for_each(
    "content",
    [
        b"x\n",
        b"{}\n",
        b'{"process":"p","group":"","reads_committed":true}\n{"id":1,"at":1,"end":"ok"}\n',
        b'{"process":"p","group":"","reads_committed":true}\n{"id":1,"at":1,"begin":"dance"}\n',
    ],
)
def test_nonsense_is_refused(content: bytes) -> None:
    with pytest.raises(HistoryError):
        parse_history(content)


def test_values_have_to_be_unique() -> None:
    same = Operation("p", 1, Kind.SEND, steps=(Sent("t-0", [5, 5], [-1, -1], [-1, -1]),))
    with pytest.raises(HistoryError, match="twice"):
        analyse([same])


def many(records: int, per_call: int = 1000, readers: int = 2) -> list[Operation]:
    """A history of so many records on eight partitions, each read so many times."""
    operations = []
    partitions = [f"t-{i}" for i in range(8)]
    ends = dict.fromkeys(partitions, 0)
    for i in range(records // per_call):
        partition = partitions[i % 8]
        values, first = np.arange(i * per_call, (i + 1) * per_call) + 1, ends[partition]
        ends[partition] += per_call
        offsets = np.arange(first, first + per_call)
        sent = Sent(partition, values, offsets, np.full(per_call, -1))  # type: ignore[arg-type]
        operations.append(Operation("p", i, Kind.SEND, Outcome.OK, i, NEVER_NS, i + 1, (sent,)))
        for reader in range(readers):
            polled = Polled(partition, offsets, values, i + 2)  # type: ignore[arg-type]
            operations.append(Operation(f"c{reader}", i, Kind.POLL, Outcome.OK, i, NEVER_NS, i + 2, (polled,)))
    return operations


def test_a_large_history() -> None:
    good = many(200_000)
    assert not analyse(good).found
    first = good[0].sends[0]
    spoiled = [o for o in good if not any(p.offsets[0] == 0 and p.partition == first.partition for p in o.polls)]
    verdict = analyse(spoiled)
    assert verdict.anomalies == {Anomaly.LOST_WRITE}
    assert verdict.found[0].count == 1000
    assert "and 990 more" in report(verdict)
    assert "(allowed)" in report(verdict, {Anomaly.LOST_WRITE})
    assert not verdict.beyond({Anomaly.LOST_WRITE})
