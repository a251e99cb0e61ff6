"""Rules of mirrored partitions: judgements, group offsets, topics and settings of a plan."""

from __future__ import annotations

import pytest

from sparklog.errors import InvalidConfigError, PolicyViolationError
from sparklog.metadata.mirror_settings import check_mirror_settings, check_writable
from sparklog.mirror.definition import (
    MirrorDefinition,
    check_definition,
    lost_records,
    mirrored_topic,
    promoted_settings,
    with_lost,
)
from sparklog.mirror.plan import chosen_topics, copied_settings
from sparklog.mirror.rules import (
    GAP_MAX,
    NO_EPOCH,
    EpochAnswer,
    Go,
    Pause,
    Skip,
    SourceBounds,
    group_offset,
    judge_bounds,
    judge_epoch,
    judge_topic,
)
from tests.support.cases import for_each

OLD = MirrorDefinition("old", "kafka://old:9092", "/etc/old.properties", "orders,logs-.*", "team-.*")


@for_each(
    "end, is_empty, bounds, expected",
    [
        (5, False, SourceBounds(0, 9, 9), Go()),
        (7, False, SourceBounds(0, 9, 7), Go()),
        (5, False, SourceBounds(7, 9, 9), Skip(7, is_lost=True)),
        (0, True, SourceBounds(7, 9, 9), Skip(7, is_lost=False)),
        (0, True, SourceBounds(0, 0, 0), Go()),
    ],
)
def test_bounds(end: int, is_empty: bool, bounds: SourceBounds, expected: Go | Skip) -> None:
    assert judge_bounds(end, is_empty, bounds) == expected


@for_each("bounds", [SourceBounds(0, 4, 4), SourceBounds(0, 9, 4), SourceBounds(GAP_MAX + 6, GAP_MAX + 9, GAP_MAX + 9)])
def test_bounds_that_pause(bounds: SourceBounds) -> None:
    assert isinstance(judge_bounds(5, False, bounds), Pause)


@for_each(
    "epoch, answer, is_good",
    [
        (3, EpochAnswer(3, 9), True),
        (3, EpochAnswer(3, 5), True),
        (3, EpochAnswer(3, 4), False),
        (3, EpochAnswer(2, 9), False),
        (3, EpochAnswer(-1, -1), False),
        (NO_EPOCH, EpochAnswer(-1, -1), True),
    ],
)
def test_epochs(epoch: int, answer: EpochAnswer, is_good: bool) -> None:
    assert isinstance(judge_epoch(5, epoch, answer), Go if is_good else Pause)


@for_each("stored, source, is_good", [("a", "a", True), ("a", "b", False), ("", "b", True), ("a", "", True)])
def test_topic_ids(stored: str, source: str, is_good: bool) -> None:
    assert isinstance(judge_topic(stored, source), Go if is_good else Pause)


@for_each(
    "source, end, committed, last, expected",
    [
        (7, 9, None, None, 7),
        (12, 9, None, None, 9),
        (7, 9, 8, None, None),
        (7, 9, 7, None, None),
        (7, 9, 5, 7, None),
        (-1, 9, None, None, None),
    ],
)
def test_offsets_of_groups_never_go_back_nor_beyond_the_end(
    source: int, end: int, committed: int | None, last: int | None, expected: int | None
) -> None:
    assert group_offset(source, end, committed, last) == expected


def test_a_definition_comes_back_from_the_settings_of_a_topic() -> None:
    topic = mirrored_topic("orders", OLD.settings("abc"))
    assert topic is not None and (topic.definition, topic.source_topic_id, topic.paused) == (OLD, "abc", "")
    assert mirrored_topic("orders", {}) is None
    assert promoted_settings().keys() >= OLD.settings("abc").keys()


@for_each(
    "definition",
    [
        MirrorDefinition("", "kafka://h:1", topics="a"),
        MirrorDefinition("a b", "kafka://h:1", topics="a"),
        MirrorDefinition("m", "h:1", topics="a"),
        MirrorDefinition("m", "kafka://", topics="a"),
        MirrorDefinition("m", "kafka://,", topics="a"),
        MirrorDefinition("m", "kafka://h", topics="a"),
        MirrorDefinition("m", "kafka://h:1,[::1]", topics="a"),
        MirrorDefinition("m", "kafka://h:1", topics=""),
        MirrorDefinition("m", "kafka://h:1", topics="a("),
        MirrorDefinition("m", "kafka://h:1", topics="a", groups="["),
    ],
)
def test_wrong_definitions_are_refused(definition: MirrorDefinition) -> None:
    with pytest.raises(InvalidConfigError):
        check_definition(definition)


def test_patterns_match_whole_names_and_no_internal_topics() -> None:
    names = ["orders", "orders2", "logs-a", "my-logs-a", "__consumer_offsets", "internal"]
    assert chosen_topics(OLD, names) == ["logs-a", "orders"]
    everything = MirrorDefinition("m", "kafka://h:1", topics=".*")
    assert chosen_topics(everything, names, internal=["internal"]) == ["logs-a", "my-logs-a", "orders", "orders2"]


def test_lost_ranges_are_listed_once() -> None:
    text = with_lost(["0:3-9"], 1, 20, 25)
    assert text == "0:3-9,1:20-25" == with_lost(text.split(","), 0, 3, 9)
    assert lost_records(text.split(",")) == {0: 6, 1: 5}
    assert with_lost(text.split(","), 1, 20, 27) == "0:3-9,1:20-27"
    assert lost_records(["nonsense", "1:x-2"]) == {}


def test_settings_are_copied_and_the_others_remarked() -> None:
    settings, remarks = copied_settings(
        {
            "cleanup.policy": "delete,compact",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "max.message.bytes": "1048588",
            "segment.bytes": "2147483647",
            "min.compaction.lag.ms": "0",
            "max.compaction.lag.ms": "9223372036854775807",
            "message.timestamp.type": "LogAppendTime",
            "min.insync.replicas": "2",
            "unknown.setting": "x",
        }
    )
    assert settings == {"cleanup.policy": "compact,delete", "retention.ms": -1}
    assert [remark.split(" ")[0] for remark in remarks] == [
        "segment.bytes",
        "message.timestamp.type",
        "min.insync.replicas",
    ]
    assert copied_settings({"max.message.bytes": "50000000"})[0] == {"max.message.bytes": 50_000_000}


MIRRORED = OLD.settings("abc")


@for_each(
    "before, after, words",
    [
        ({}, MIRRORED, "exists already"),
        (MIRRORED, {**MIRRORED, "mirror.name": "other"}, "cannot be changed"),
        (MIRRORED, {**MIRRORED, "mirror.source.topic.id": "x"}, "cannot be changed"),
        (MIRRORED, {**MIRRORED, "mirror.source": ""}, "needs mirror.source"),
        (MIRRORED, {**MIRRORED, "mirror.name": ""}, "without mirror.name"),
        ({}, {"mirror.paused": "x"}, "without mirror.name"),
        (MIRRORED, {"mirror.promoted.topic.id": "x"}, "only 'sparklog mirror promote' sets it"),
        (MIRRORED, {**MIRRORED, "mirror.promoted.topic.id": "abc"}, "only 'sparklog mirror promote' sets it"),
        ({}, {"mirror.promoted.topic.id": "x"}, "only 'sparklog mirror promote' sets it"),
    ],
)
def test_changes_of_a_mirrors_settings_that_are_refused(
    before: dict[str, object], after: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        check_mirror_settings("t", before, after)


@for_each(
    "before, after",
    [
        (MIRRORED, MIRRORED),
        (MIRRORED, {}),
        (MIRRORED, {"mirror.promoted.topic.id": "abc"}),
        ({"mirror.promoted.topic.id": "abc"}, {"mirror.promoted.topic.id": "abc", "retention.ms": 5}),
        ({"mirror.promoted.topic.id": "abc"}, {}),
        (MIRRORED, {**MIRRORED, "mirror.paused": "x", "mirror.source": "kafka://new:9092"}),
        ({}, {"retention.ms": 5}),
    ],
)
def test_changes_of_a_mirrors_settings_that_are_accepted(before: dict[str, object], after: dict[str, object]) -> None:
    check_mirror_settings("t", before, after)


def test_a_mirrored_topic_is_for_the_mirror_and_another_is_not() -> None:
    check_writable("t", MIRRORED, by_mirror=True)
    check_writable("t", {}, by_mirror=False)
    with pytest.raises(PolicyViolationError, match="mirror promote old t"):
        check_writable("t", MIRRORED, by_mirror=False)
    with pytest.raises(PolicyViolationError, match="not mirrored"):
        check_writable("t", {}, by_mirror=True)
