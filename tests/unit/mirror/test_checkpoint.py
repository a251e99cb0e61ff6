"""The checkpoint of a query on its way to the copies of its topics: ids, positions, and forms that are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparklog.errors import InvalidConfigError
from sparklog.format.source_offsets import IDS, INITIAL, hidden_state, offset_text
from sparklog.mirror.checkpoint import (
    OffsetFile,
    PositionCheck,
    TopicCopy,
    newest_topics,
    plan_move,
    read_offset_file,
    read_source_end,
)
from sparklog.types import TopicPartition
from tests.support.cases import for_each

A, B = "a" * 32, "b" * 32
OTHER, COPY_OF_OTHER = "c" * 32, "d" * 32
COPIES = {"orders": TopicCopy(B, A), "stock": TopicCopy(COPY_OF_OTHER, OTHER)}
HEAD = 'v1\n{"batchWatermarkMs":0}'


def line(positions: dict[str, Any], ids: dict[str, str], initial: dict[str, Any] | None = None) -> str:
    return offset_text(positions, {IDS: ids} | ({} if initial is None else {INITIAL: initial}))


def file(*sources: str) -> OffsetFile:
    return read_offset_file("0", "\n".join((HEAD, *sources)))


def orders(end: int, topic_id: str = A) -> str:
    return line({"orders": {"0": end}}, {"orders": topic_id})


def test_the_ids_of_all_offsets_become_those_of_the_copies() -> None:
    first = line({"orders": {"0": 5, "1": 3}}, {"orders": A}, {"orders": {"0": 2, "1": 3}})
    second = line({"orders": {"0": 9, "1": 3}}, {"orders": A})
    move = plan_move({0: file(first), 1: file(second)}, {0, 1}, COPIES)
    assert (move.batch, move.is_planned, move.topics, move.remarks) == (1, False, {"orders": (A, B)}, ())
    assert move.files.keys() == {0, 1}
    texts = [move.files[n].split("\n") for n in (0, 1)]
    assert ["\n".join(text[:2]) for text in texts] == [HEAD, HEAD]
    assert [json.loads(text[2]) for text in texts] == [json.loads(first), json.loads(second)]
    states = [hidden_state(text[2], json.loads(text[2])) for text in texts]
    assert states == [{IDS: {"orders": B}, INITIAL: {"orders": {"0": 2, "1": 3}}}, {IDS: {"orders": B}}]
    assert len(move.files[1]) == len(file(second).text())
    assert move.checks == {
        TopicPartition("orders", 0): PositionCheck(9, 9),
        TopicPartition("orders", 1): PositionCheck(3, 3),
    }


def test_a_planned_batch_needs_its_whole_range_at_the_copy() -> None:
    move = plan_move({3: file(orders(5)), 4: file(orders(8))}, {3}, COPIES)
    assert move.is_planned and move.checks == {TopicPartition("orders", 0): PositionCheck(5, 8)}
    first = line({"orders": {"0": 8}}, {"orders": A}, {"orders": {"0": 6}})
    move = plan_move({0: file(first)}, set(), COPIES)
    assert move.checks == {TopicPartition("orders", 0): PositionCheck(6, 8)}


def test_ids_as_entries_stay_entries() -> None:
    text = json.dumps({"orders": {"0": 5}, IDS: {"orders": A}, INITIAL: {"orders": {"0": 1}}})
    move = plan_move({0: file(text)}, {0}, COPIES)
    assert json.loads(move.files[0].split("\n")[2]) == {
        "orders": {"0": 5},
        IDS: {"orders": B},
        INITIAL: {"orders": {"0": 1}},
    }


def test_sources_of_other_formats_and_clusters_stay_as_they_are() -> None:
    sources = (
        orders(5),
        "-",
        '{"logOffset":3}',
        '{"events":{"0":7}}',
        line({"elsewhere": {"0": 4}}, {"elsewhere": OTHER}),
        line({"stock": {"0": 4}}, {"stock": OTHER}),
    )
    move = plan_move({7: file(*sources)}, {7}, COPIES)
    texts = move.files[7].split("\n")[2:]
    assert move.topics == {"orders": (A, B), "stock": (OTHER, COPY_OF_OTHER)}
    assert texts[1:5] == list(sources[1:5]) and texts[0] != sources[0] and texts[5] != sources[5]
    reasons = [remark.split(":")[0] for remark in move.remarks]
    assert reasons == [f"source {n} stays as it is" for n in (1, 2, 3, 4)]
    assert {tp.topic for tp in move.checks} == {"orders", "stock"}
    assert newest_topics({7: file(*sources)}) == {"orders", "events", "elsewhere", "stock"}


def test_older_offsets_of_an_earlier_topic_with_the_name_keep_its_id() -> None:
    move = plan_move({0: file(orders(50, OTHER)), 1: file(orders(2))}, {0, 1}, COPIES)
    assert move.files.keys() == {1}


def test_offsets_without_ids_need_no_change() -> None:
    move = plan_move({0: file('{"orders":{"0":5}}')}, {0}, COPIES)
    assert (move.files, move.topics) == ({}, {})
    assert 'format("kafka")' in move.remarks[0]
    assert move.checks == {TopicPartition("orders", 0): PositionCheck(5, 5)}


def test_offsets_of_kafka_for_a_topic_with_columns_have_a_remark() -> None:
    typed = {"orders": TopicCopy(B, A, has_columns=True)}
    (remark,) = plan_move({0: file('{"orders":{"0":5}}')}, {0}, typed).remarks
    assert "topic 'orders' has columns of its own there" in remark and "new checkpoint" in remark
    assert plan_move({0: file(orders(5))}, {0}, typed).remarks == (), "a query of sparklog has these columns already"


def test_a_source_of_another_cluster_stays_beside_one_that_goes_on() -> None:
    move = plan_move({0: file('{"orders":{"0":5}}', '{"elsewhere":{"0":4}}')}, {0}, COPIES)
    assert move.files == {} and "no topic 'elsewhere' there" in move.remarks[1]


@for_each(
    "source, words",
    [
        (orders(5, OTHER), f"a copy of the topic with the id {A}, the query has read the one with the id {OTHER}"),
        (orders(5, B), "there already"),
        (line({"elsewhere": {"0": 4}}, {"elsewhere": OTHER}), "topic 'elsewhere' does not exist there"),
        (line({"own": {"0": 4}}, {"own": OTHER}), "topic 'own' there is no copy"),
        (line({"orders": {"0": 4}, "own": {"0": 1}}, {"orders": A, "own": OTHER}), "A source reads one cluster"),
        ('{"elsewhere":{"0":4},"orders":{"0":1}}', "no topic ids, and there is no topic 'elsewhere' there"),
        ('{"logOffset":3}', "no source of the query reads topics"),
        ("-", "no source of the query reads topics"),
        (json.dumps({"orders": {"0": -1}, IDS: {"orders": A}}), "no positions"),
        (json.dumps({"orders": {"x": 1}, IDS: {"orders": A}}), "no positions"),
        (json.dumps({"orders": {"0": 1}, IDS: {"orders": 7}}), "no positions"),
    ],
)
def test_offsets_that_cannot_move_are_refused_with_the_reason(source: str, words: str) -> None:
    with pytest.raises(InvalidConfigError) as refusal:
        plan_move({0: file(source)}, {0}, COPIES | {"own": TopicCopy(B, "")})
    assert words in str(refusal.value)


@for_each(
    "text",
    ["", "v1", "v1\n{}", "v2\n{}\n{}", "v1\n[]\n{}", "v1\nx\n{}", "\n{}\n{}", "v12\n{}\n{}"],
)
def test_other_forms_of_offset_logs_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="only offset logs of version 'v1'"):
        read_offset_file("3", text)


def test_a_checkpoint_without_a_batch_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="no micro-batch yet"):
        plan_move({}, set(), COPIES)


def test_texts_that_are_no_positions_are_those_of_other_sources() -> None:
    for text in ("5", "[1]", '{"a": 1}', '{"a": {"0": true}}', '{"a": {"0": 1.5}}', "x", ""):
        assert read_source_end(text) is None, text
