"""Answers of brokers: outcomes of several items, identities, topics."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sparklog.client.net.answers import identity_of
from sparklog.client.net.outcomes import NAMES_MAX, raise_failed
from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import InvalidRequestError, OffsetOutOfRangeError, SparklogError, StorageError
from sparklog.format.body_layout import INFLATED_BYTES_MAX
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.protocol.transaction_messages import InitProducerIdResponse
from sparklog.types import ProducerIdAndEpoch


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


# Checks of answers


def test_an_identity_fits_into_a_batch() -> None:
    """Found by a campaign: an epoch of more than 16 bits ended the producer's thread in struct.error."""
    for identity in ((0, 0), (2**63 - 1, 2**15 - 1)):
        assert identity_of(InitProducerIdResponse(*identity)) == ProducerIdAndEpoch(*identity)
    for identity in ((-1, 0), (0, -1), (0, 2**15), (2**63, 0)):
        with pytest.raises(InvalidRequestError, match="which no producer can have"):
            identity_of(InitProducerIdResponse(*identity))


# A client's check of a topic's settings, as the broker sends them


MIB = 1 << 20


def test_a_broker_does_not_set_its_clients_limit_of_decompression() -> None:
    cases: tuple[tuple[dict[str, object], int], ...] = (
        ({}, 128 * MIB),
        ({"max.message.bytes": MIB, "max.message.inflated.ratio": 3}, 3 * MIB),
        ({"max.message.bytes": 1024 * MIB, "max.message.inflated.ratio": 1024}, INFLATED_BYTES_MAX),
    )
    for given, expected in cases:
        info = TopicInfo("t", "id", "envelope", 1, 1, {1: ENVELOPE_SCHEMA}, (), None, given, 0, ())
        assert info.inflated_bytes_max == expected, given
