"""Offsets of a query: their text, Spark's checkpoint, the lag."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark_sparklog import offset_text
from pyspark_sparklog.lag import offsets_behind_latest
from pyspark_sparklog.offset_text import RUNNER, OffsetDict, OffsetJson
from pyspark_sparklog.offsets import SourceOffset, nested
from pyspark_sparklog.sink.spark_checkpoint import input_digest, location_of

from sparklog.errors import InvalidConfigError
from sparklog.format.source_offsets import IDS, INITIAL
from sparklog.types import TopicPartition
from tests.support.cases import for_each

TP = TopicPartition


def test_the_text_is_kafkas_plus_ids_in_numeric_order() -> None:
    offset = SourceOffset({TP("b", 0): 1, TP("a", 10): 2, TP("a", 9): 3}, {"b": "ib", "a": "ia"})
    assert json.dumps(offset.to_dict()) == ('{"a": {"9": 3, "10": 2}, "b": {"0": 1}, "$ids": {"a": "ia", "b": "ib"}}')


def test_a_round_trip_through_json_is_exact() -> None:
    offset = SourceOffset({TP("a", 10): 2, TP("a", 9): 3}, {"a": "ia"}, {TP("a", 9): 1, TP("a", 10): 0})
    text = json.dumps(offset.to_dict())
    again = SourceOffset.from_dict(json.loads(text))
    assert again == offset
    assert json.dumps(again.to_dict()) == text


def test_kafkas_own_offsets_can_be_read() -> None:
    assert SourceOffset.from_dict({"t": {"0": 4}}) == SourceOffset({TP("t", 0): 4}, {})


@for_each(
    "data",
    [
        {"t": 3},
        {"t": {"x": 1}},
        {"$ids": 3},
        {"$ids": {"t": True}},
        {"$initial": {"t": 1}},
        *({"t": {"0": offset}} for offset in (None, True, False, 1.0, 1.5, "1", " 1", [1], -1, 2**63)),
        *({"t": {partition: 1}} for partition in ("00", " 0", "+0", "-1", "1_0", "\u0661", "0.0", "")),
        {"t": {"0": 1}, "$initial": {"t": {"0": True}}},
    ],
    ids=str,
)
def test_foreign_offsets_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError, match="another query"):
        SourceOffset.from_dict(data)


def test_the_same_place_does_not_depend_on_the_initial_offsets() -> None:
    a = SourceOffset({TP("t", 0): 4}, {"t": "i"}, {TP("t", 0): 1})
    assert a.same_place(SourceOffset({TP("t", 0): 4}, {"t": "i"}))
    assert not a.same_place(SourceOffset({TP("t", 0): 4}, {"t": "j"}))
    assert not a.same_place(SourceOffset({TP("t", 0): 5}, {"t": "i"}))


# The lag of a query's progress


END, LATEST = {"t": {"0": 4, "1": 9}}, {"t": {"0": 9, "1": 9, "2": 1}}
EXPECTED = {"minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "5", "avgOffsetsBehindLatest": "2.0"}


@for_each("form", [dict, lambda **v: SimpleNamespace(**v)])
@for_each("text", [json.dumps, str, lambda v: v])
def test_of_all_forms_of_progress(form: Any, text: Any) -> None:
    assert offsets_behind_latest(form(endOffset=text(END), latestOffset=text(LATEST))) == EXPECTED


@for_each("source", [{}, {"endOffset": "{}", "latestOffset": None}, {"endOffset": str(END), "latestOffset": "None"}])
def test_no_lag_before_the_first_batch(source: Any) -> None:
    assert offsets_behind_latest(source) == {}


def test_entries_of_earlier_versions_do_not_count() -> None:
    assert offsets_behind_latest({"endOffset": END, "latestOffset": LATEST | {"$ids": {"t": "i"}}}) == EXPECTED


@for_each("text", ["5", "{", '{"t": 3}', '{"t": {"0": "x"}}', '{"t": {"0": true}}', '{"t": {"0": 1.5}}'])
def test_offsets_of_other_sources_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="are not offsets of sparklog's source"):
        offsets_behind_latest({"endOffset": text, "latestOffset": text})


# Offsets as text: the JSON for other readers, and the part that only the source finds


OFFSET = SourceOffset({TP("a", 10): 2, TP("a", 9): 3, TP("b", 0): 1}, {"a": "1f" * 16, "b": "00" * 16}, {TP("a", 9): 1})


def runner(json_module: ModuleType = json) -> ModuleType:
    module = ModuleType("__main__")
    module.__spec__ = ModuleSpec(RUNNER, None)
    module.json = json_module  # type: ignore[attr-defined]
    return module


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules, "__main__", runner())
    offset_text.install()
    yield sys.modules["__main__"].json


def test_others_parse_topics_and_numbers_only(installed: Any) -> None:
    text = installed.dumps(OFFSET.to_dict())
    assert json.loads(text) == {"a": {"9": 3, "10": 2}, "b": {"0": 1}}
    assert "".join(text.split("\t")).replace(" ", "") == '{"a":{"9":3,"10":2},"b":{"0":1}}'
    assert "\n" not in text, "a line of the checkpoint's"


def test_the_source_finds_the_rest(installed: Any) -> None:
    text = installed.dumps(OFFSET.to_dict())
    read = installed.loads(text)
    assert SourceOffset.from_dict(read) == OFFSET
    assert installed.dumps(read) == text, "to Spark another text is new data"
    assert installed.dumps(SourceOffset.from_dict(read).to_dict()) == text


HEX = st.binary(min_size=16, max_size=16).map(bytes.hex)
NUMBERS = st.integers(0, 2**63 - 1)
NAMES = st.text(st.sampled_from('ab\u00e4"x'), min_size=1, max_size=3)


@given(
    positions=st.dictionaries(NAMES, st.dictionaries(st.integers(0, 20), NUMBERS, min_size=1, max_size=4), max_size=3),
    ids=st.dictionaries(NAMES, HEX | NAMES, max_size=3),
    has_all_ids=st.booleans(),
    initial=st.none() | st.integers(0, 2**40),
)
def test_state_of_any_form_comes_back(
    positions: dict[str, dict[int, int]], ids: dict[str, str], has_all_ids: bool, initial: int | None
) -> None:
    """Ids of all topics, of some, of others and of another form; with and without where the first batch began."""
    if has_all_ids:
        ids = {name: (ids.get(name, "") + "0" * 32)[:32] for name in positions}
    flat = {TP(name, p): o for name, partitions in positions.items() for p, o in partitions.items()}
    began = None if initial is None else dict.fromkeys(flat, initial)
    text = OffsetDict(nested(flat), beside := {IDS: ids} | ({} if began is None else {INITIAL: nested(began)})).text
    read = OffsetJson().loads(text)
    assert json.loads(text) == nested(flat)
    assert read.beside == beside
    assert OffsetJson().dumps(read) == text


def test_the_text_is_short_and_the_longer_one_of_before_is_read(installed: Any) -> None:
    """An error of a query shows the offsets up to four times."""
    offset = SourceOffset({TP("trips", 0): 12}, {"trips": "0123456789abcdef" * 2})
    text = installed.dumps(offset.to_dict())
    assert sum(text.count(c) for c in " \t") <= 8 * (1 + 16 + 2) + 2
    packed = zlib.compress(json.dumps({"$ids": offset.ids}, separators=(",", ":")).encode(), 9)
    bits = format(int.from_bytes(b"\1" + packed), "b")[1:].replace("0", " ").replace("1", "\t")
    assert SourceOffset.from_dict(installed.loads('{"trips": {"0": 12}' + bits + "}")) == offset


def test_offsets_of_earlier_versions_are_read(installed: Any) -> None:
    old = json.dumps({"t": {"0": 4}, "$ids": {"t": "i"}, "$initial": {"t": {"0": 1}}})
    assert SourceOffset.from_dict(installed.loads(old)) == SourceOffset({TP("t", 0): 4}, {"t": "i"}, {TP("t", 0): 1})
    assert installed.dumps(installed.loads(old)) == old


def test_the_runner_sees_no_other_change(installed: Any) -> None:
    assert installed.loads('{"_type": "ReadMaxRows", "max_rows": 3}') == {"_type": "ReadMaxRows", "max_rows": 3}
    assert installed.dumps({"a": None}) == '{"a": null}'
    assert installed.loads(b"[1]") == [1]
    assert installed.JSONDecodeError is json.JSONDecodeError


@for_each("text", ['{"t": {"0": 1} }', '{"t": {"0": 1}        }', '{"t": {"0": 1}' + "\t " * 40 + "}", "{ }"])
def test_white_space_of_other_programs_has_no_meaning(text: str) -> None:
    read = OffsetJson().loads(text)
    assert type(read) is dict
    assert SourceOffset.from_dict(read).ids == {}


def test_damaged_white_space_has_no_meaning(installed: Any) -> None:
    text = installed.dumps(OFFSET.to_dict())
    middle = len(text) - 100
    damaged = text[:middle] + (" " if text[middle] == "\t" else "\t") + text[middle + 1 :]
    assert type(installed.loads(damaged)) is dict


def test_white_space_that_unpacks_to_too_much_has_no_meaning() -> None:
    text = OffsetDict({"t": {"0": 1}}, {"x": "y" * 5_000}).text
    assert isinstance(OffsetJson().loads(text), OffsetDict)
    assert type(OffsetJson(beside_bytes_max=1_000).loads(text)) is dict


@pytest.mark.parametrize("module", [ModuleType("__main__"), runner(ModuleType("json"))])
def test_elsewhere_offsets_hold_it_as_entries(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    monkeypatch.setitem(sys.modules, "__main__", module)
    offset_text.install()
    assert not offset_text.is_installed()
    assert SourceOffset({TP("t", 0): 4}, {"t": "i"}).to_dict() == {"t": {"0": 4}, "$ids": {"t": "i"}}


NAMES = st.text(st.sampled_from("abc.-_0"), min_size=1, max_size=5)
POSITIONS = st.dictionaries(
    st.builds(TP, NAMES, st.integers(0, 999)), st.integers(0, 2**63 - 1), min_size=1, max_size=6
)


@given(POSITIONS, st.dictionaries(NAMES, st.uuids().map(lambda u: u.hex)), st.none() | POSITIONS)
def test_any_offset_comes_back(positions: Any, ids: Any, initial: Any) -> None:
    offset = SourceOffset(positions, ids, initial)
    beside = {k: v for k, v in offset.to_dict().items() if k.startswith("$")}
    pure = {k: v for k, v in offset.to_dict().items() if not k.startswith("$")}
    text = OffsetDict(pure, beside).text
    assert json.loads(text) == pure
    assert SourceOffset.from_dict(OffsetJson().loads(text)) == offset


# Readable parts of a checkpoint, and the refusal of anything else


META = '{"batchWatermarkMs":0,"batchTimestampMs":%d}'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Of query "q", with a blank in its name."""
    made = tmp_path / "a checkpoint"
    (made / "offsets").mkdir(parents=True)
    (made / "metadata").write_text(json.dumps({"id": "q"}))
    return made


def write(checkpoint: Path, batch: int, *offsets: str, at_ms: int = 1) -> None:
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(["v1", META % at_ms, *offsets]))


def test_it_goes_by_where_the_batch_begins_and_ends(checkpoint: Path) -> None:
    write(checkpoint, 0, '{"t":{"0":3}}')
    write(checkpoint, 1, '{"t":{"0":5}}', "7")
    first, second = input_digest(str(checkpoint), "q", 0), input_digest(str(checkpoint), "q", 1)
    assert first and second and first != second
    write(checkpoint, 1, '{"t":{"0":5}}', "7", at_ms=2)
    assert input_digest(str(checkpoint), "q", 1) == second, "planned at another time"
    write(checkpoint, 1, '{"t":{"0":6}}', "7")
    assert input_digest(str(checkpoint), "q", 1) not in ("", second)
    write(checkpoint, 1, '{"t":{"0":5}}', "7")
    write(checkpoint, 0, '{"t":{"0":4}}')
    assert input_digest(str(checkpoint), "q", 1) not in ("", second), "begins elsewhere"


def test_a_location_can_be_a_url(checkpoint: Path) -> None:
    write(checkpoint, 0, "{}")
    found = input_digest(str(checkpoint), "q", 0)
    assert found == input_digest(checkpoint.as_uri(), "q", 0) == input_digest(f"file:{checkpoint}", "q", 0)


def test_unreadable_files_have_no_checkpoint(checkpoint: Path) -> None:
    write(checkpoint, 0, "{}")
    for location, query, batch in [
        ("", "q", 0),
        ("s3a://bucket/checkpoint", "q", 0),
        (f"hdfs:{checkpoint}", "q", 0),
        (str(checkpoint), "other", 0),
        (str(checkpoint), "", 0),
        (str(checkpoint), "q", 1),
        (str(checkpoint), "q", -1),
        (str(checkpoint) + "x", "q", 0),
    ]:
        assert input_digest(location, query, batch) == "", (location, query, batch)
    (checkpoint / "offsets" / "0").write_text("v1")
    assert input_digest(str(checkpoint), "q", 0) == ""
    (checkpoint / "metadata").write_text("[1]")
    assert input_digest(str(checkpoint), "q", 0) == ""


def test_where_a_query_has_its_checkpoint() -> None:
    assert location_of("/own", "/all", "name") == "/own"
    assert location_of("", "/all/", "name") == "/all/name"
    assert location_of("", "/all", "") == location_of("", None, "name") == ""
