"""Errors of calls about several items: which were changed and which were not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sparklog.client.net.outcomes import NAMES_MAX, raise_failed
from sparklog.errors import InvalidRequestError, OffsetOutOfRangeError, SparklogError, StorageError


def message(outcomes: Mapping[str, object]) -> str:
    with pytest.raises(SparklogError) as raised:
        raise_failed(outcomes, "deleted")
    assert raised.value.outcomes == outcomes
    return str(raised.value)


def test_without_a_failure_no_error_is_raised() -> None:
    raise_failed({"a": 1, "b": None}, "deleted")
    raise_failed({}, "deleted")


def test_a_single_item_has_its_own_message_alone() -> None:
    assert message({"a": StorageError("full")}) == "full"


def test_each_reason_appears_once_and_the_first_gives_the_class() -> None:
    outcomes = {"a": 1, "b": OffsetOutOfRangeError("x"), "c": StorageError("y"), "d": OffsetOutOfRangeError("x")}
    with pytest.raises(OffsetOutOfRangeError):
        raise_failed(outcomes, "deleted")
    assert message(outcomes) == "x; y. 3 of 4 partitions failed: b, c, d; deleted: a"
    refused = {"a": InvalidRequestError("x"), "b": InvalidRequestError("x")}
    assert message(refused) == "x. 2 of 2 partitions failed: a, b; no partition is deleted"


def test_long_lists_are_counted() -> None:
    many = {str(i): StorageError(str(i)) if i % 2 else i for i in range(100)}
    text = message(many)
    assert "1; 3; 5 (and 47 other reasons). 50 of 100 partitions failed: 1, 3, 5" in text
    assert text.count(f"and {50 - NAMES_MAX} more") == 2
