"""The columns of mirrored topics in the options of `sparklog mirror create`."""

from __future__ import annotations

import pyarrow as pa
import pytest
import typer

from sparklog.cli.mirror import _columns, _key_columns
from sparklog.client.admin.mirror_admin import mirror_definition
from sparklog.mirror.definition import TopicColumns, read_columns
from tests.support.cases import for_each


@for_each(
    "text,pattern",
    [
        ("id BIGINT, item STRING", ".*"),
        ("orders=id BIGINT, item STRING", "orders"),
        ("logs-.*=id BIGINT, item STRING", "logs-.*"),
        ("id BIGINT, item STRING COMMENT 'a=b'", ".*"),
    ],
)
def test_columns_have_a_pattern_or_are_for_all_topics(text: str, pattern: str) -> None:
    assert _columns([text]) == {pattern: pa.schema([("id", pa.int64()), ("item", pa.string())])}


def test_quoted_names_can_contain_the_mark_of_a_pattern() -> None:
    assert _columns(["`a=b` INT"]) == {".*": pa.schema([("a=b", pa.int32())])}
    assert _key_columns(["orders=a,`b,c`", "d"]) == {"orders": ["a", "b,c"], ".*": ["d"]}


@for_each(
    "texts",
    [["id BIGINT", "item STRING"], ["orders=id BIGINT", "stock=item STRING", "orders=item STRING"]],
)
def test_two_values_for_the_same_topics_are_refused(texts: list[str]) -> None:
    with pytest.raises(typer.BadParameter, match=r"topics.* have two values of this option"):
        _columns(texts)
    with pytest.raises(typer.BadParameter, match="--key-columns"):
        _key_columns(["a", "b"])


def test_a_definition_has_the_columns_as_ddl_in_the_order_of_the_options() -> None:
    definition = mirror_definition(
        "m",
        source="kafka://h:1",
        topics=".*",
        value_format="json",
        columns=_columns(["orders=id BIGINT, `a b` STRING", "n INT"]),
        key_columns=_key_columns(["orders=id"]),
    )
    orders, others = TopicColumns("orders", "id BIGINT, `a b` STRING", ("id",)), TopicColumns(".*", "n INT")
    assert read_columns(definition.columns) == [orders, others]
    assert (definition.columns_of("orders"), definition.columns_of("stock")) == (orders, others)
