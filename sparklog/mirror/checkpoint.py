"""The checkpoint of a Spark query, moved to the copies of its topics in another cluster. Pure.

A directory `offsets` has a file for each micro-batch: a line with the version, a line with metadata, then a line for
each source with the batch's end in this source. Spark writes the file before the batch runs, and a file with the same
name in `commits` behind it. A source of `format("sparklog")` keeps the ids of its topics beside the positions. In the
copy of a topic the offsets are the same, and the id is another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from sparklog.errors import InvalidConfigError
from sparklog.format.source_offsets import IDS, INITIAL, hidden_state, offset_text
from sparklog.types import TopicPartition

VERSION = "v1"
NAMED_MAX = 5
NEW_CHECKPOINT = (
    "start the query with a new checkpoint location, and with the positions from which it is to read as startingOffsets"
)


class OffsetFile(NamedTuple):
    """The file of one micro-batch."""

    head: str
    """Lines with the version and the metadata."""
    sources: tuple[str, ...]
    """Line of each source; "-": the batch has nothing of it."""

    def text(self) -> str:
        """Return the file's text."""
        return "\n".join((self.head, *self.sources))


class SourceEnd(NamedTuple):
    """The end of a micro-batch in a source that has topics and partitions."""

    positions: Mapping[str, Mapping[str, int]]
    ids: Mapping[str, str]
    """Ids of topics by name; empty: the offsets have none, such as those of format("kafka")."""
    initial: Mapping[str, Any] | None
    """Start of a query's first micro-batch; None: not in this file."""
    is_hidden: bool
    """True if the ids stand in the white space of the text."""

    def text(self, ids: Mapping[str, str]) -> str:
        """Return the line with other ids."""
        beside: dict[str, Any] = {IDS: dict(ids)}
        if self.initial is not None:
            beside[INITIAL] = self.initial
        return offset_text(self.positions, beside) if self.is_hidden else json.dumps({**self.positions, **beside})

    def flat(self) -> dict[TopicPartition, int]:
        """Return the positions by partition."""
        return {TopicPartition(t, int(p)): o for t, partitions in self.positions.items() for p, o in partitions.items()}


class TopicCopy(NamedTuple):
    """A topic of the cluster to which the checkpoint moves."""

    topic_id: str
    source_topic_id: str
    """Id of the source's topic of which the topic is a copy; "": the topic is no copy."""
    has_columns: bool = False
    """True if the topic is a typed one, without the columns of Spark's Kafka source."""


class PositionCheck(NamedTuple):
    """The offsets of a partition that the query needs at the copy."""

    begin: int
    """Next offset that the query reads."""
    end: int
    """End of the micro-batch that is planned; `begin` if none is."""


class CheckpointMove(NamedTuple):
    """The changes of a checkpoint."""

    batch: int
    """Number of the newest micro-batch."""
    is_planned: bool
    """True if the newest micro-batch has no commit, so that Spark runs it again."""
    files: dict[int, str]
    """New texts of the files in `offsets` that change, by micro-batch."""
    topics: dict[str, tuple[str, str]]
    """Old and new id of each topic that changes."""
    remarks: tuple[str, ...]
    """Sources that stay as they are, with the reason."""
    checks: dict[TopicPartition, PositionCheck]
    """Offsets that the copies must have."""


def read_offset_file(name: str, text: str) -> OffsetFile:
    """Return the content of a file in `offsets`. Raises InvalidConfigError for another form than Spark's version 1."""
    version, _, rest = text.partition("\n")
    metadata, mark, sources = rest.partition("\n")
    try:
        is_known = version.strip() == VERSION and bool(mark) and isinstance(json.loads(metadata or "{}"), dict)
    except ValueError:
        is_known = False
    if not is_known:
        raise InvalidConfigError(
            f"offsets/{name} begins with {text[:40]!r}: only offset logs of version {VERSION!r}, with a line of metadata "
            f"and a line for each source, can be moved; {NEW_CHECKPOINT}"
        )
    return OffsetFile(f"{version}\n{metadata}", tuple(sources.split("\n")))


def read_source_end(line: str) -> SourceEnd | None:
    """Return the end of a micro-batch in a source; None for a source without topics and partitions. Raises
    InvalidConfigError for topic ids with positions that no offset of format("sparklog") has."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    beside = hidden_state(line, value)
    is_hidden = beside is not None
    if beside is None:
        beside = {key: value.pop(key) for key in (IDS, INITIAL) if key in value}
    ids = beside.get(IDS, {})
    if _are_positions(value) and isinstance(ids, dict) and all(isinstance(i, str) for i in ids.values()):
        return SourceEnd(value, ids, beside.get(INITIAL), is_hidden)
    if beside:
        raise InvalidConfigError(f"the offsets {line!r:.200} have topic ids, but no positions; {NEW_CHECKPOINT}")
    return None


def _are_positions(value: Mapping[str, Any]) -> bool:
    return all(
        isinstance(partitions, dict)
        and all(p.isdecimal() and type(o) is int and 0 <= o < 2**63 for p, o in partitions.items())
        for partitions in value.values()
    )


def newest_topics(files: Mapping[int, OffsetFile]) -> set[str]:
    """Return the names of the topics in the newest micro-batch. Raises InvalidConfigError."""
    ends = [read_source_end(line) for line in files[max(files)].sources] if files else []
    return {name for end in ends if end is not None for name in end.positions}


def plan_move(files: Mapping[int, OffsetFile], committed: set[int], copies: Mapping[str, TopicCopy]) -> CheckpointMove:
    """Return the changes of a checkpoint. `files`: those in `offsets` by micro-batch. `committed`: numbers of the files
    in `commits`. `copies`: topics of the cluster to which the checkpoint moves, by name.

    Raises InvalidConfigError for a checkpoint without a micro-batch, or whose topics have no copy.
    """
    if not files:
        raise InvalidConfigError(
            "the checkpoint has no micro-batch yet: there is nothing to move; start the query with a new checkpoint location"
        )
    batch = max(files)
    is_planned = batch not in committed
    ends = [read_source_end(line) for line in files[batch].sources]
    topics: dict[str, tuple[str, str]] = {}
    remarks, failures, checked = [], [], []
    goes_on, unknown = False, []
    for number, end in enumerate(ends):
        moved, reason = _judge_source(end, copies)
        topics |= moved
        if end is not None and not end.ids:
            is_unknown = any(name not in copies for name in end.positions)
            goes_on |= not is_unknown
            unknown += [reason] if is_unknown else []
        if end is not None and (moved or not end.ids):
            checked.append(number)
        if reason:
            remarks.append(f"source {number} stays as it is: {reason}")
            failures += [reason] if end is not None and end.ids else []
    if all(end is None for end in ends):
        raise InvalidConfigError("no source of the query reads topics: there is nothing to move")
    failures += [] if goes_on else unknown
    if not topics and failures:
        raise InvalidConfigError(f"nothing in the checkpoint can move: {'; '.join(failures)}")
    texts = {number: _with_ids(file, topics).text() for number, file in files.items()}
    return CheckpointMove(
        batch,
        is_planned,
        {number: text for number, text in texts.items() if text != files[number].text()},
        topics,
        tuple(remarks),
        _checks(files, batch, is_planned, checked, copies),
    )


def _judge_source(end: SourceEnd | None, copies: Mapping[str, TopicCopy]) -> tuple[dict[str, tuple[str, str]], str]:
    """Return the old and new ids of a source's topics, and the reason why the source stays as it is. Raises
    InvalidConfigError if only some of its topics have copies."""
    if end is None:
        return {}, "it has no topics"
    if not end.ids:
        absent = [name for name in end.positions if name not in copies]
        if absent:
            names = ", ".join(map(repr, absent[:NAMED_MAX]))
            more = f" and {len(absent) - NAMED_MAX} more" if len(absent) > NAMED_MAX else ""
            return {}, f"its offsets have no topic ids, and there is no topic {names}{more} there"
        typed = [name for name in end.positions if copies[name].has_columns]
        if typed:
            return {}, (
                f'its offsets have no topic ids, such as those of format("kafka"), but topic {typed[0]!r} has columns '
                f"of its own there: a query that uses other columns fails. {NEW_CHECKPOINT}"
            )
        return {}, (
            'its offsets have no topic ids, such as those of format("kafka"), and need none: format("sparklog") goes '
            "on with them"
        )
    moved, others = {}, {}
    for name, topic_id in end.ids.items():
        copy = copies.get(name)
        if copy is None:
            others[name] = f"topic {name!r} does not exist there"
        elif copy.source_topic_id == topic_id:
            moved[name] = (topic_id, copy.topic_id)
        elif copy.topic_id == topic_id:
            others[name] = f"its offsets have the id of topic {name!r} there already"
        elif copy.source_topic_id:
            others[name] = (
                f"topic {name!r} there is a copy of the topic with the id {copy.source_topic_id}, the query has read the "
                f"one with the id {topic_id}"
            )
        else:
            others[name] = f"topic {name!r} there is no copy: no mirror has filled it"
    reasons = "; ".join(list(others.values())[:NAMED_MAX])
    if len(others) > NAMED_MAX:
        reasons += f"; and {len(others) - NAMED_MAX} more"
    if moved and others:
        raise InvalidConfigError(
            f"a source of the query reads topics that have no copy: {reasons}. A source reads one cluster: mirror all of "
            "its topics first"
        )
    return moved, reasons


def _with_ids(file: OffsetFile, topics: Mapping[str, tuple[str, str]]) -> OffsetFile:
    """Return a file whose sources have new ids; those that do not change keep their text."""
    lines = []
    for line in file.sources:
        end = read_source_end(line)
        changed = {} if end is None else {t: topics[t][1] for t, i in end.ids.items() if topics.get(t, ("",))[0] == i}
        if end is not None and changed:
            line = end.text({**end.ids, **changed})
        lines.append(line)
    return OffsetFile(file.head, tuple(lines))


def _checks(
    files: Mapping[int, OffsetFile], batch: int, is_planned: bool, sources: list[int], copies: Mapping[str, TopicCopy]
) -> dict[TopicPartition, PositionCheck]:
    """Return the offsets that the query needs. A topic that two sources read has the highest end and lowest begin."""
    checks: dict[TopicPartition, PositionCheck] = {}
    before = files.get(batch - 1)
    for number in sources:
        end = read_source_end(files[batch].sources[number])
        assert end is not None
        begins = end.flat()
        if is_planned and end.initial is not None:
            begins = SourceEnd(end.initial, {}, None, is_hidden=False).flat()
        elif is_planned and before is not None and number < len(before.sources):
            earlier = read_source_end(before.sources[number])
            begins = {} if earlier is None else earlier.flat()
        for tp, position in end.flat().items():
            if tp.topic not in copies:
                continue
            one, other = PositionCheck(begins.get(tp, 0), position), checks.get(tp)
            checks[tp] = one if other is None else PositionCheck(min(one.begin, other.begin), max(one.end, other.end))
    return checks
