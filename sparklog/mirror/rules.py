"""Rules of a mirrored partition, pure. The log end here is the only state; the source decides nothing that is here.

A partition is judged before its first fetch, and again after each change of its leader at the source::

    facts                                                      judgement
    the source's topic has another id                          Pause: it was deleted and created again
    the source has another epoch at the log end here,          Pause: an unclean election has replaced records that
      or ends below it                                           the mirror has
    the source's last stable offset is below the log end       Pause: an unclean election has lost the marker of a
      here                                                       transaction
    the source's log start is above the log end here           Skip: the offsets between are a gap, and lost
    otherwise                                                  Go

A pause ends by `sparklog mirror resume` only, after a person has decided. Nothing here is ever rewritten.
"""

from __future__ import annotations

from typing import NamedTuple

NO_EPOCH = -1
NO_SCHEMA = -1
GAP_MAX = 2**40
"""Largest number of offsets that a mirror skips at once. A source that states more is damaged or lies."""


class SourceBounds(NamedTuple):
    """Offsets of a partition at the source."""

    start: int
    """Log start offset."""
    end: int
    """High watermark: end of the records that consumers can read."""
    stable: int
    """Last stable offset: end of the records of readers with read_committed."""


class EpochAnswer(NamedTuple):
    """The source's answer about the end of a leader epoch; both are -1 if the source has no such epoch."""

    epoch: int
    end_offset: int


class Go(NamedTuple):
    """Judgement: fetch from the log end here."""


class Skip(NamedTuple):
    """Judgement: the offsets up to `start` are gone at the source, and become a gap here."""

    start: int
    is_lost: bool
    """False for a log without records here: the mirror begins where the source begins."""


class Pause(NamedTuple):
    """Judgement: the mirror stops for this topic, with a reason."""

    reason: str


Judgement = Go | Skip | Pause


def absent_text(topic: str) -> str:
    """Return the error of a topic that the source does not show."""
    return f"the source has no topic {topic!r}, or the mirror's user cannot describe it"


def judge_topic(expected_id: str, source_id: str) -> Go | Pause:
    """Judge the id of the source's topic. An id that one side lacks is not compared: Kafka has ids since 2.8."""
    if expected_id and source_id and expected_id != source_id:
        return Pause(
            f"the source's topic has the id {source_id}, but the mirror was created with {expected_id}: the topic was "
            "deleted and created again at the source. Promote the topic here to keep its records, or delete it and "
            "create the mirror again"
        )
    return Go()


def judge_bounds(end: int, is_empty: bool, source: SourceBounds, decided_end: int = 0) -> Judgement:
    """Judge the log end here against the source's offsets. `is_empty`: the log here never had a record. `decided_end`:
    end of the refused log of a typed topic, below which refused records are stored."""
    kept = max(end, decided_end)
    if source.end < kept:
        return Pause(
            f"the source ends at offset {source.end}, the mirror has offsets up to {kept}: the source has lost records "
            "(an unclean election, or an older backup). Promote the topic here to keep them, or delete it and create "
            "the mirror again"
        )
    if source.stable < kept:
        return Pause(
            f"the source's last stable offset is {source.stable}, the mirror has offsets up to {kept}: the source has lost "
            "the marker of a transaction (an unclean election), whose records the mirror has stored or left out. "
            "Promote the topic here to keep its records, or delete it and create the mirror again"
        )
    if source.start > end:
        if source.start - end > GAP_MAX:
            return Pause(
                f"the source's log begins at {source.start}, the mirror ends at {end}: at most {GAP_MAX} offsets are "
                "skipped at once"
            )
        return Skip(source.start, is_lost=not is_empty)
    return Go()


def judge_epoch(end: int, epoch: int, answer: EpochAnswer) -> Go | Pause:
    """Judge the source's answer about `epoch`, the source's leader epoch of the last record here, which ends at
    `end`."""
    if epoch == NO_EPOCH:
        return Go()
    if answer.epoch == epoch and answer.end_offset >= end:
        return Go()
    if answer.epoch == NO_EPOCH:
        difference = f"the source has no leader epoch {epoch}"
    elif answer.epoch != epoch:
        difference = f"the source has leader epoch {answer.epoch} there, up to offset {answer.end_offset}"
    else:
        difference = f"the source's records of this epoch end at offset {answer.end_offset}"
    return Pause(
        f"the mirror's last record has leader epoch {epoch} and ends at offset {end}, but {difference}: an unclean "
        "election at the source has replaced records that the mirror has. Promote the topic here to keep them, or "
        "delete it and create the mirror again"
    )


def group_offset(source_offset: int, end: int, committed: int | None, last_copied: int | None) -> int | None:
    """Return the offset to commit for a group's partition here; None: leave it. `end`: the log end here. `committed`:
    the offset here; None: none. `last_copied`: the offset that this worker copied last. An offset never goes back, and
    never beyond the end here."""
    if source_offset < 0:
        return None
    offset = min(source_offset, end)
    if offset == last_copied or (committed is not None and offset <= committed):
        return None
    return offset
