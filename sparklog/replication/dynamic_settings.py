"""Settings of brokers that can change while the brokers run: their names in the cluster's image, and their precedence.

| source, the strongest first | stored |
|---|---|
| one broker's own value | in the image, under `broker/<id>/<name>` |
| the value for all brokers | in the image, under `broker/*/<name>` |
| the broker's file and command line | on the broker's host |
| the default | in the table of settings |

Only settings that are `dynamic` in the table of settings can change. Defaults of topic settings have the prefix
`topic.`; in the broker's file they are in the table `[topic]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from sparklog.errors import InvalidConfigError, PolicyViolationError
from sparklog.security.connection_limits import parse_overrides
from sparklog.settings import Scope, Setting, Value, did_you_mean, settings_of

ALL_BROKERS = -1
"""Broker id that stands for all brokers."""
TOPIC_PREFIX = "topic."
ENTRIES_MAX = 2_000
"""Largest number of stored values. All values are in one node of ZooKeeper, and in the image of each broker."""
_PREFIX = "broker/"
_OVERRIDES = "max.connections.per.ip.overrides"


class Source(IntEnum):
    """Source of a value, with Kafka's number."""

    BROKER = 2
    ALL_BROKERS = 3
    FILE = 4
    DEFAULT = 5
    GROUP = 8


def settings_by_name() -> dict[str, Setting]:
    """Return all settings of brokers by name, and the settings of topics under TOPIC_PREFIX."""
    topics = {TOPIC_PREFIX + name: setting for name, setting in settings_of(Scope.TOPIC).items()}
    return {**settings_of(Scope.BROKER), **topics}


def stored_values(configs: Mapping[str, Value], broker_id: int) -> dict[str, Value]:
    """Return the values that are stored for this broker id, without values for all brokers. `configs`: settings of the
    cluster, as in its image. `broker_id`: id of the broker; ALL_BROKERS for the values of all brokers."""
    prefix = _prefix(broker_id)
    return {key.removeprefix(prefix): value for key, value in configs.items() if key.startswith(prefix)}


def effective_values(configs: Mapping[str, Value], broker_id: int) -> dict[str, Value]:
    """Return the stored values that take precedence over a broker's file. Values that this release does not accept,
    because another release has stored them, are left out. `configs`: settings of the cluster, as in its image."""
    values: dict[str, Value] = {}
    for name, value in {**stored_values(configs, ALL_BROKERS), **stored_values(configs, broker_id)}.items():
        try:
            values[name] = _checked(name, value)
        except InvalidConfigError:
            continue
    return values


def altered_configs(
    configs: Mapping[str, Value], broker_id: int, changes: Mapping[str, object | None]
) -> dict[str, Value | None]:
    """Return changes of a broker's settings as changes of the cluster's settings. `configs`: settings of the cluster,
    as in its image. `broker_id`: id of the broker; ALL_BROKERS for all brokers. `changes`: values by setting name; None
    removes the stored value. Raises InvalidConfigError: A setting is unknown, needs a restart, or is out of bounds;
    PolicyViolationError."""
    prefix = _prefix(broker_id)
    altered = {prefix + n: None if v is None and _dynamic(n) else _checked(n, v) for n, v in changes.items()}
    after = {**configs, **altered}
    count = sum(key.startswith(_PREFIX) and value is not None for key, value in after.items())
    if count > ENTRIES_MAX and any(value is not None for value in altered.values()):
        raise PolicyViolationError(
            f"{count} settings of brokers would be stored; at most {ENTRIES_MAX} are allowed: set some for all "
            "brokers instead"
        )
    return altered


def _prefix(broker_id: int) -> str:
    return f"{_PREFIX}{'*' if broker_id == ALL_BROKERS else broker_id}/"


def _dynamic(name: str) -> Setting:
    settings = settings_by_name()
    setting = settings.get(name)
    if setting is None:
        raise InvalidConfigError(f"unknown broker setting {name!r}{did_you_mean(name, settings)}")
    if not setting.dynamic:
        table = "the table [topic] of the file" if name.startswith(TOPIC_PREFIX) else "the file"
        raise InvalidConfigError(
            f"{name} cannot change while a broker runs: set it in {table} of each broker, and restart the broker "
            "(sparklog config describe shows the settings that can change)"
        )
    return setting


def _checked(name: str, value: object) -> Value:
    parsed = _dynamic(name).parse(value)
    if name == _OVERRIDES:
        parse_overrides(str(parsed))
    return parsed
