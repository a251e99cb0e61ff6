"""A client's check of a topic's settings, as the broker sends them."""

from __future__ import annotations

from sparklog.client.net.topic_info import TopicInfo
from sparklog.format.body_layout import INFLATED_BYTES_MAX
from sparklog.format.schema import ENVELOPE_SCHEMA

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
