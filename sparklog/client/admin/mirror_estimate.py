"""An estimate of a mirror's work, before it begins: records, bytes and time, from samples of the source's records.

One fetch per topic is sampled, at the middle of its longest partition: it gives the bytes of an offset, and the time of
a fetch and its conversion. Records of a typed topic are converted into its columns, so that those that do not fit show
up. Offsets without a record count as records, so that the numbers are upper bounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sparklog.errors import SparklogError
from sparklog.format.body_layout import INFLATED_BYTES_MAX
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.mirror.placing import Placed
from sparklog.mirror.refused import RefusedLog
from sparklog.mirror.rules import NO_EPOCH, NO_SCHEMA, SourceBounds
from sparklog.mirror.source import ConversionTarget, MirrorSource, SourceTopic
from sparklog.mirror.typed import NO_LIMIT, TypedConversion, TypedTarget
from sparklog.types import TopicPartition

SAMPLES_MAX = 50
"""Largest number of topics that are sampled; the others count with the mean size of a record."""
SAMPLE_WAIT_MS = 500


class Trial(NamedTuple):
    """The conversion of some records of a topic."""

    records: int = 0
    """Number of records."""
    unfit: int = 0
    """Number of those that do not fit the columns."""
    problem: str = ""
    """Place of the first one that does not fit, and the reason; or the error of the conversion; empty: none."""


class TopicEstimate(NamedTuple):
    """The size of one topic at the source."""

    records: int
    """Number of offsets that can be copied."""
    size_bytes: int
    """Estimated size of their batches at the source."""
    held: int = 0
    """Number of further offsets, which wait for the end of an open transaction."""
    trial: Trial = Trial()
    """Conversion of the sample."""


class MirrorEstimate(NamedTuple):
    """The size of a mirror's topics, and the time that one worker takes for them."""

    topics: dict[str, TopicEstimate]
    seconds: float
    """Estimated time of fetches and conversions; 0 without records. Appends come on top."""

    def within(self, bytes_per_second: int) -> MirrorEstimate:
        """Return the estimate with a limit of the rate; 0: no limit."""
        if not bytes_per_second:
            return self
        size_bytes = sum(size.size_bytes for size in self.topics.values())
        return self._replace(seconds=max(self.seconds, size_bytes / bytes_per_second))


class _Sample(NamedTuple):
    """A sampled fetch."""

    records: int
    size_bytes: int
    seconds: float
    trial: Trial


def _no_columns(topic: str) -> TypedTarget | None:
    """Return no target: the topics are no typed topics."""
    return None


def estimate_mirror(
    source: MirrorSource,
    names: Iterable[str],
    target_of: Callable[[str], TypedTarget | None] = _no_columns,
    clock_s: Callable[[], float] = time.monotonic,
) -> MirrorEstimate:
    """Estimate the work for topics of the source. `target_of`: returns the columns of a topic that the values fill.
    Raises errors of the source's metadata; a partition that does not answer counts as empty."""
    topics = source.topics(list(names))
    tps = [TopicPartition(name, p) for name, topic in topics.items() for p in range(len(topic.partitions))]
    bounds = {
        tp: one if isinstance(one, SourceBounds) else SourceBounds(0, 0, 0)
        for tp, one in source.bounds(topics, tps).items()
    }
    lengths = {tp: (one.start, max(one.stable - one.start, 0)) for tp, one in bounds.items()}
    records, held = dict.fromkeys(topics, 0), dict.fromkeys(topics, 0)
    for tp, one in bounds.items():
        records[tp.topic] += lengths[tp][1]
        held[tp.topic] += max(one.end - one.stable, 0)
    samples: dict[str, _Sample] = {}
    for name in sorted(topics, key=lambda name: -records[name])[:SAMPLES_MAX]:
        if records[name]:
            longest = max((tp for tp in lengths if tp.topic == name), key=lambda tp: lengths[tp][1])
            start, length = lengths[longest]
            sample = _sample(source, topics, longest, start + length // 2, target_of, clock_s)
            if sample is not None:
                samples[name] = sample
    total = _Sample(
        sum(s.records for s in samples.values()),
        sum(s.size_bytes for s in samples.values()),
        sum(s.seconds for s in samples.values()),
        Trial(),
    )
    sizes = {}
    for name, count in records.items():
        sample = samples.get(name, total)
        mean = sample if sample.records else total
        size_bytes = count * mean.size_bytes // max(mean.records, 1)
        sizes[name] = TopicEstimate(count, size_bytes, held[name], sample.trial)
    all_bytes = sum(size.size_bytes for size in sizes.values())
    return MirrorEstimate(sizes, all_bytes * total.seconds / max(total.size_bytes, 1))


def _sample(
    source: MirrorSource,
    topics: dict[str, SourceTopic],
    tp: TopicPartition,
    offset: int,
    target_of: Callable[[str], TypedTarget | None],
    clock_s: Callable[[], float],
) -> _Sample | None:
    """Fetch and convert some records. Returns None if the source has none there now."""
    leader = source.leader(topics, tp)
    if leader is None:
        return None
    epoch = topics[tp.topic].partitions[tp.partition].leader_epoch
    begin_s = clock_s()
    try:
        part = source.fetch(leader, {tp: (offset, epoch, NO_EPOCH)}, wait_ms=SAMPLE_WAIT_MS).get(tp)
        if part is None or part.error is not None or not part.records.size_bytes:
            return None
    except SparklogError:
        return None
    schemas = dict(enumerate(topics[tp.topic].schemas or (ENVELOPE_SCHEMA,)))
    try:
        target = target_of(tp.topic)
        typed = None
        if target is not None:
            log = RefusedLog(start=offset, end=offset)
            target = target._replace(refused_max=NO_LIMIT)
            typed = TypedConversion(target, tp.partition, log, 0, position=offset, schema_id=NO_SCHEMA)
        placed = part.records.place(offset, ConversionTarget(INFLATED_BYTES_MAX, 0, typed, schemas))
    except SparklogError as e:
        return _Sample(0, 0, 0, Trial(problem=str(e)))
    if not placed.batches:
        return None
    return _Sample(placed.next_offset - offset, part.records.size_bytes, clock_s() - begin_s, _trial(placed))


def _trial(placed: Placed) -> Trial:
    return Trial(placed.records + placed.refused.new, placed.refused.new, placed.refused.example)
