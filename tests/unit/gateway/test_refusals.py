"""Refused batches are counted; their log is limited in rate."""

from __future__ import annotations

import pytest

from sparklog.gateway.limited_lines import LINE_EVERY_S, REASON_CHARS_MAX
from sparklog.gateway.refusals import Refusals


def test_refusals_are_counted_and_logged_at_a_limited_rate(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    refusals = Refusals(lambda: now_s[0])
    for step in range(50):
        now_s[0] = step * LINE_EVERY_S / 10
        refusals.note_batch("1.2.3.4, client id 'c'", "t-0", "record 0 has no key" + "x" * 1_000)
    assert refusals.batches == 50
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 5
    assert lines[0].startswith("1.2.3.4, client id 'c': a batch for t-0 is refused: record 0 has no key")
    assert len(lines[0]) < REASON_CHARS_MAX + 100
    assert all(line.endswith("(9 more batches were refused since the last such line)") for line in lines[1:])


def test_records_in_refused_topics_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(lambda: 0.0)
    refusals.note_records("1.2.3.4", "t-0", 3, "no column x")
    refusals.note_records("1.2.3.4", "t-1", 2, "no column x")
    assert (refusals.batches, refusals.records) == (0, 5)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "1.2.3.4: 3 records for t-0 go to the refused topic, the first one because of: no column x"


def test_rows_that_consumers_cannot_get_have_lines_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    refusals = Refusals(lambda: now_s[0])
    refusals.note_batch("h", "t-0", "no column x")
    for step in range(4):
        now_s[0] = step * LINE_EVERY_S / 2
        refusals.note_fetch("h, client id 'c'", "t-0", "a row does not fit")
    assert refusals.batches == 1
    text = "h, client id 'c': the next rows of t-0 cannot be sent: a row does not fit"
    assert [record.getMessage() for record in caplog.records][1:] == [
        text,
        f"{text} (1 more such answers were sent since the last such line)",
    ]
