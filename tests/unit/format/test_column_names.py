"""Lists of column names as one text."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.producer.rows import rows_of
from sparklog.client.producer.typed_rows import TypedTopic
from sparklog.errors import InvalidConfigError, InvalidTopicError, SchemaMismatchError
from sparklog.format.column_names import column_list, column_names, shown_names
from sparklog.format.schema import fit_table, require_columns
from sparklog.format.schema_evolution import SchemaChange
from tests.support.clients import info


@given(st.lists(st.text(min_size=1) | st.text(alphabet=" ,`a\n", min_size=1)))
def test_any_names_can_be_written(names: list[str]) -> None:
    assert column_names(column_list(names)) == names


@given(st.text(alphabet=" ,`ab"))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        names = column_names(text)
    except InvalidConfigError:
        return
    assert all(names)
    assert column_names(column_list(names)) == names


def test_names_as_they_are_written() -> None:
    for text, names in {
        "": [],
        " , ,": [],
        "a": ["a"],
        " a , b c,": ["a", "b c"],
        "`a,b`, ` c`,d`e": ["a,b", " c", "d`e"],
        "`a``b`": ["a`b"],
    }.items():
        assert column_names(text) == names
    for text in ("`a", "`a`b", "``", "a, `b``"):
        with pytest.raises(InvalidConfigError, match=r"--columns = .*backquote"):
            column_names(text, "--columns")


def test_names_in_an_error_message() -> None:
    assert shown_names(["a, b", "c", " d", "e f"]) == "`a, b`, c, ` d`, e f"
    schema = pa.schema([("a, b", pa.int64()), ("c", pa.int64())])
    with pytest.raises(InvalidTopicError, match=r"not in the schema \(columns: `a, b`, c"):
        require_columns(schema, ["a"], None)
    with pytest.raises(SchemaMismatchError, match="the topic's columns are `a, b`, c"):
        fit_table(pa.table({"x": [1], "y": [2]}), schema, "t")
    topic = info(schema)
    with pytest.raises(SchemaMismatchError, match="a row has at least one of `a, b`, c"):
        rows_of([{}], topic, None)
    with pytest.raises(SchemaMismatchError, match=r"typed \(columns `a, b`, c\): a row is a dict"):
        TypedTopic(topic, 1 << 20, []).checked(b"x", None, None, None, None)
    with pytest.raises(SchemaMismatchError, match="found `a, b`, c"):
        rows_of(pa.table({"a, b": [1], "c": [2]}), info(), None)
    moved = pa.schema([schema.field(1), schema.field(0)])
    with pytest.raises(InvalidTopicError, match="it is `a, b`, c"):
        SchemaChange(whole=moved).applied_to(schema, [], None)
