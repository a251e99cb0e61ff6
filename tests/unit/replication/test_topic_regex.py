"""Regular expressions of subscriptions."""

from __future__ import annotations

import pytest

from sparklog.errors import InvalidRegularExpressionError
from sparklog.protocol.group_messages import REGEX_CHARS_MAX
from sparklog.replication.topic_regex import matching_topics
from sparklog.types import INTERNAL_TOPICS
from tests.support.cases import for_each

NAMES = ["a", "ab", "b", "orders.eu", "orders-eu", *INTERNAL_TOPICS]


@for_each(
    "case",
    [
        ("a", ["a"]),
        ("a|b", ["a", "b"]),
        ("^a.*$", ["a", "ab"]),
        (r"orders\..*", ["orders.eu"]),
        ("(?i)A", ["a"]),
        (".*", ["a", "ab", "b", "orders-eu", "orders.eu"]),
        ("c", []),
    ],
)
def test_an_expression_matches_whole_names_of_other_than_internal_topics(case: tuple[str, list[str]]) -> None:
    regex, names = case
    assert matching_topics(regex, NAMES) == names


@for_each("regex", ["(", "*", "a)|(b", "(?=a)", r"\1", "a{1001}", "\ud800", "a" * (REGEX_CHARS_MAX + 1)])
def test_other_texts_are_refused(regex: str) -> None:
    with pytest.raises(InvalidRegularExpressionError):
        matching_topics(regex, NAMES)
