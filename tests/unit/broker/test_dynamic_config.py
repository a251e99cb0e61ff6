"""Dynamic settings in one broker: taken over from images, given to the parts, described with their sources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparklog_broker.config import BrokerConfig, make_config
from sparklog_broker.descriptors import REFUSALS_MAX, Descriptors, share_out
from sparklog_broker.dynamic_config import DynamicConfig

from sparklog.errors import TooManyConnectionsError
from sparklog.replication.dynamic_settings import ALL_BROKERS, TOPIC_PREFIX, Source
from sparklog.security.connection_limits import ConnectionLimits, Connections
from sparklog.security.quotas import QuotaTable


def configured() -> BrokerConfig:
    given = {"broker.id": 1, "num.partitions": 2, "remote.log.storage.url": "s3://key:pl4nt@store/x", "zookeeper.password": "pl4nt",
             "zookeeper.username": "z"}  # fmt: skip
    return make_config(given, {"retention.ms": 5_000})


def test_values_come_and_go_with_the_images() -> None:
    config = configured()
    dynamic = DynamicConfig(config)
    told: list[tuple[int, object]] = []
    dynamic.watch(("num.partitions",), lambda: told.append((config.num_partitions, None)))
    dynamic.watch((TOPIC_PREFIX,), lambda: told.append((0, config.topic_defaults["retention.ms"])))
    first = {"broker/*/num.partitions": 5, "broker/2/num.partitions": 9, "broker/*/topic.retention.ms": 7_000}
    dynamic.follow(first)
    dynamic.follow(first)
    dynamic.follow(dict(first))
    assert told == [(5, None), (0, 7_000)], "once for each change"
    dynamic.follow({**first, "broker/1/num.partitions": 6})
    dynamic.follow({"broker/*/max.connections": 50})
    assert told[2:] == [(6, None), (2, None), (0, 5_000)], "the file's values are back"
    assert config.max_connections == 50


def test_the_value_of_a_file_comes_back_also_if_it_is_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERRIDES", "10.0.0.1:7")
    name = "max.connections.per.ip.overrides"
    config = make_config({"broker.id": 1, name: "${env:OVERRIDES}"})
    dynamic = DynamicConfig(config)
    dynamic.follow({f"broker/1/{name}": "10.0.0.2:8"})
    assert config.max_connections_per_ip_overrides == "10.0.0.2:8"
    dynamic.follow({})
    assert config.max_connections_per_ip_overrides == "10.0.0.1:7"


def test_a_part_that_fails_does_not_keep_others_from_the_change(caplog: pytest.LogCaptureFixture) -> None:
    config = configured()
    dynamic = DynamicConfig(config)
    told: list[object] = []

    def fails() -> None:
        raise ValueError(config.num_partitions)

    dynamic.watch(("num.partitions",), fails)
    dynamic.watch(("num.partitions", "max.connections"), lambda: told.append(config.num_partitions))
    dynamic.follow({"broker/*/num.partitions": 5})
    assert told == [5]
    assert "a change of num.partitions is not in effect" in caplog.text


def test_a_later_part_gets_the_values_of_the_start() -> None:
    config = configured()
    dynamic = DynamicConfig(config)
    dynamic.follow({"broker/*/log.level": "DEBUG"})
    told: list[object] = []
    dynamic.watch(("log.level",), lambda: told.append(config.log_level))
    dynamic.watch(("num.partitions",), lambda: told.append("not this one"))
    assert told == ["DEBUG"]


def test_sources_are_described_and_secrets_are_not() -> None:
    dynamic = DynamicConfig(configured())
    dynamic.follow(
        {"broker/*/num.partitions": 5, "broker/1/num.partitions": 6, "broker/*/log.level": "DEBUG", "other": 1}
    )
    found = {e.name: (e.value, e.source) for e in dynamic.describe(1)}
    assert found["num.partitions"] == ("6", Source.BROKER)
    assert found["log.level"] == ("DEBUG", Source.ALL_BROKERS)
    assert found["topic.retention.ms"] == ("5000", Source.FILE)
    assert found["auto.create.topics.enable"] == ("true", Source.DEFAULT)
    assert found["zookeeper.password"] == (None, Source.FILE)
    assert found["remote.log.storage.url"] == ("s3://[hidden]@store/x", Source.FILE)
    assert not [name for name, (value, _) in found.items() if "pl4nt" in str(value)]
    assert [(e.name, e.value, e.source) for e in dynamic.describe(ALL_BROKERS)] == [
        ("log.level", "DEBUG", Source.ALL_BROKERS),
        ("num.partitions", "5", Source.ALL_BROKERS),
    ]


def test_new_limits_count_for_the_next_connection() -> None:
    connections = Connections(ConnectionLimits(per_ip_max=1), QuotaTable())
    connections.opened("10.0.0.1", 0)
    with pytest.raises(TooManyConnectionsError):
        connections.opened("10.0.0.1", 0)
    connections.limits = ConnectionLimits(per_ip_max=2)
    connections.opened("10.0.0.1", 0)


# Shares of descriptors


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, Descriptors(1024, 10_000, 100)),
        (1_048_576, Descriptors(1024, 10_000, 100)),
        (1024, Descriptors(512, 346, 38)),
        (256, Descriptors(128, 87, 9)),
    ],
)
def test_of_usual_limits(limit: int | None, expected: Descriptors) -> None:
    assert share_out(limit, 1024, 10_000) == expected


@given(st.integers(16, 10**7), st.integers(16, 10**7), st.integers(1, 10**6))
def test_never_more_than_available(limit: int, files: int, connections: int) -> None:
    shares = share_out(limit, files, connections)
    assert 1 <= shares.connections <= connections
    assert shares.files <= files
    assert 0 <= shares.refusals <= REFUSALS_MAX
    assert shares.files + shares.connections + shares.refusals < limit
