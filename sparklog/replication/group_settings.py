"""Settings of single groups: their names in the cluster's image, and their effect on the broker's settings for groups.

The names are Kafka's. A setting that is not stored for a group has the value of the broker's setting `group.<name>`.
The cluster's image has the values under `group/<group id>/<name>`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from sparklog.errors import InvalidConfigError, PolicyViolationError
from sparklog.replication.group_membership import GroupConfig
from sparklog.settings import Scope, Setting, Value, did_you_mean, settings_of

ENTRIES_MAX = 2_000
"""Largest number of stored values. All values are in the image of each broker."""
SESSION_TIMEOUT, HEARTBEAT_INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
_PREFIX, _BROKERS = "group/", "group."
_FIELDS = {SESSION_TIMEOUT: "session_timeout_ms", HEARTBEAT_INTERVAL: "heartbeat_interval_ms"}
"""Field of `GroupConfig` by setting."""

GroupSettings = Mapping[str, Mapping[str, Value]]
"""The stored values by group id and setting."""


def settings_by_name() -> dict[str, Setting]:
    """Return the broker's settings whose values groups can have of their own, by the names for groups."""
    of_brokers = settings_of(Scope.BROKER)
    return {name: of_brokers[_BROKERS + name] for name in _FIELDS}


def stored_groups(configs: Mapping[str, Value]) -> GroupSettings:
    """Return the values of all groups. `configs`: settings of the cluster, as in its image."""
    groups: dict[str, dict[str, Value]] = {}
    for key, value in configs.items():
        if key.startswith(_PREFIX):
            group_id, _, name = key.removeprefix(_PREFIX).rpartition("/")
            if name in _FIELDS:
                groups.setdefault(group_id, {})[name] = value
    return groups


def group_config(config: GroupConfig, values: Mapping[str, Value]) -> GroupConfig:
    """Return the settings of a group with these stored values."""
    return (
        structs.replace(config, **{_FIELDS[name]: int(value) for name, value in values.items()}) if values else config
    )


def altered_group(
    configs: Mapping[str, Value], config: GroupConfig, group_id: str, changes: Mapping[str, object | None]
) -> dict[str, Value | None]:
    """Return changes of a group's settings as changes of the cluster's settings. `configs`: settings of the cluster, as
    in its image. `config`: the broker's settings for groups. `changes`: values by setting; None removes the stored
    value. Raises InvalidConfigError and PolicyViolationError."""
    settings, altered = settings_by_name(), dict[str, Value | None]()
    for name, value in changes.items():
        setting = settings.get(name)
        if setting is None:
            raise InvalidConfigError(f"unknown setting {name!r} of a group{did_you_mean(name, settings)}")
        altered[f"{_PREFIX}{group_id}/{name}"] = None if value is None else setting.parse(value)
    after = {key: value for key, value in {**configs, **altered}.items() if value is not None}
    group = group_config(config, stored_groups(after).get(group_id, {}))
    if group.session_timeout_ms <= group.heartbeat_interval_ms:
        raise InvalidConfigError(
            f"{SESSION_TIMEOUT} = {group.session_timeout_ms} must be above {HEARTBEAT_INTERVAL} = "
            f"{group.heartbeat_interval_ms}"
        )
    count = sum(key.startswith(_PREFIX) for key in after)
    if count > ENTRIES_MAX and any(value is not None for value in altered.values()):
        raise PolicyViolationError(
            f"{count} settings of groups would be stored; at most {ENTRIES_MAX} are allowed: set the brokers' settings "
            f"{_BROKERS}consumer.… instead"
        )
    return altered
