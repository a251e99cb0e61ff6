"""Kafka's topic settings: tools send all of them, most with their defaults."""

from __future__ import annotations

import pytest

from sparklog.errors import InvalidConfigError
from sparklog.gateway.handlers.configs import config_entries
from sparklog.kafka.topic_settings import FIXED, LONG_MAX, parse_settings
from sparklog.protocol.topic_messages import TopicState
from tests.support.cases import for_each

DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": str(LONG_MAX),
    "flush.ms": str(LONG_MAX),
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": str(LONG_MAX),
    "max.message.bytes": "1048588",
    "message.downconversion.enable": "true",
    "message.format.version": "2.8-IV1",
    "message.timestamp.after.max.ms": str(LONG_MAX),
    "message.timestamp.before.max.ms": str(LONG_MAX),
    "message.timestamp.difference.max.ms": str(LONG_MAX),
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.copy.lag.bytes": "0",
    "remote.copy.lag.ms": "0",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
"""The topic settings of Kafka 2.8 to 4.3, with their defaults."""
OTHERS = {
    "compression.gzip.level": "9",
    "follower.replication.throttled.replicas": "*",
    "message.format.version": "0.9.0",
    "message.timestamp.before.max.ms": "1000",
    "preallocate": "true",
    "remote.log.copy.disable": "true",
    "remote.log.delete.on.disable": "true",
}


def test_all_settings_of_kafka_are_accepted_with_their_defaults() -> None:
    parsed = parse_settings(DEFAULTS)
    assert set(parsed) == set(DEFAULTS) - set(FIXED)
    state = TopicState(0, "t", configs=parsed)
    shown = {entry["name"]: entry["value"] for entry in config_entries(state)}
    assert {name: shown[name] for name in DEFAULTS} == DEFAULTS | {"message.format.version": "3.0-IV1"}


@for_each("name, value", OTHERS.items())
def test_other_values_of_settings_that_sparklog_lacks_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"{name} = '.*{value[-3:].replace('*', '.')}': only "):
        parse_settings({name: value})


def test_a_list_is_accepted_in_any_order() -> None:
    assert parse_settings({"cleanup.policy": "delete, compact"}) == {"cleanup.policy": "compact,delete"}
    with pytest.raises(InvalidConfigError, match=r"cleanup\.policy = ''"):
        parse_settings({"cleanup.policy": ""})


def test_the_error_of_an_unknown_setting_names_all_settings() -> None:
    with pytest.raises(InvalidConfigError, match=r"unknown topic setting 'retention'; known are .*preallocate"):
        parse_settings({"retention": "1"})
