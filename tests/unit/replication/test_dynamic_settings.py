"""Dynamic settings of brokers: names, precedence, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import InvalidConfigError, PolicyViolationError
from sparklog.replication.dynamic_settings import (
    ALL_BROKERS,
    ENTRIES_MAX,
    TOPIC_PREFIX,
    altered_configs,
    effective_values,
    settings_by_name,
    stored_values,
)
from sparklog.security.secrets import is_sensitive
from sparklog.settings import Value

DYNAMIC = {name: setting for name, setting in settings_by_name().items() if setting.dynamic}


def applied(configs: dict[str, Value], broker_id: int, changes: dict[str, object | None]) -> dict[str, Value]:
    after = {**configs, **altered_configs(configs, broker_id, changes)}
    return {name: value for name, value in after.items() if value is not None}


def test_one_brokers_value_is_stronger_than_that_of_all() -> None:
    other: dict[str, Value] = {"cordoned.brokers": "7", "min.insync.replicas": 2}
    configs = applied(other, ALL_BROKERS, {"max.connections": 5_000, "topic.retention.ms": "3d"})
    configs = applied(configs, 1, {"max.connections": 100})
    assert effective_values(configs, 1) == {"max.connections": 100, "topic.retention.ms": 3 * 86_400_000}
    assert effective_values(configs, 11) == {"max.connections": 5_000, "topic.retention.ms": 3 * 86_400_000}
    assert stored_values(configs, ALL_BROKERS).keys() == {"max.connections", "topic.retention.ms"}
    configs = applied(configs, 1, {"max.connections": None})
    configs = applied(configs, ALL_BROKERS, {"topic.retention.ms": None, "max.connections": None})
    assert configs == other


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"num.io.threads": 3}, "restart"),
        ({"num.io.threads": None}, "restart"),
        ({"topic.cleanup.policy": "compact"}, r"table \[topic\]"),
        ({"max.conections": 3}, "did you mean 'max.connections'"),
        ({"retention.ms": 3}, "did you mean"),
        ({"max.connections": 0}, "at least 1"),
        ({"max.connections": "many"}, "whole number"),
        ({"log.level": "LOUD"}, "use one of"),
        ({"max.connections.per.ip.overrides": "nowhere"}, "ADDRESS:NUMBER"),
    ],
)
def test_a_change_is_refused_as_a_whole(changes: dict[str, object | None], hint: str) -> None:
    with pytest.raises(InvalidConfigError, match=hint):
        altered_configs({}, 1, {"num.partitions": 3, **changes})


def test_a_value_of_another_release_is_skipped() -> None:
    stored: dict[str, Value] = {
        "broker/*/num.io.threads": 3,
        "broker/*/new.setting": 1,
        "broker/*/max.connections": "x",
    }
    assert effective_values({**stored, "broker/1/num.partitions": 2}, 1) == {"num.partitions": 2}


def test_the_number_of_stored_values_is_limited() -> None:
    full: dict[str, Value] = {f"broker/{i}/num.partitions": 1 for i in range(ENTRIES_MAX)}
    with pytest.raises(PolicyViolationError, match="set some for all brokers"):
        altered_configs(full, ALL_BROKERS, {"num.partitions": 1})
    assert altered_configs(full, 5, {"num.partitions": 2})
    assert altered_configs(full, 5, {"num.partitions": None})


def test_no_secret_and_no_place_is_dynamic() -> None:
    assert DYNAMIC
    for name in DYNAMIC:
        assert not is_sensitive(name)
        assert not name.removeprefix(TOPIC_PREFIX).startswith(
            ("ssl.", "sasl.", "listen", "zookeeper.", "data.", "lake.")
        )


@given(
    st.lists(st.tuples(st.integers(ALL_BROKERS, 3), st.sampled_from(["num.partitions", "max.connections"]), st.none() | st.integers(1, 100))),
    st.integers(0, 3),
)  # fmt: skip
def test_the_last_change_of_the_strongest_source_counts(
    changes: list[tuple[int, str, int | None]], broker: int
) -> None:
    configs: dict[str, Value] = {}
    model: dict[tuple[int, str], int] = {}
    for owner, name, value in changes:
        configs = applied(configs, owner, {name: value})
        model.pop((owner, name), None)
        model |= {} if value is None else {(owner, name): value}
    found = effective_values(configs, broker)
    for name in ("num.partitions", "max.connections"):
        assert found.get(name) == model.get((broker, name), model.get((ALL_BROKERS, name)))
