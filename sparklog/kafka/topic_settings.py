"""Kafka's topic settings: the values of those that sparklog lacks, and Kafka's texts of those that it has.

The table has the topic settings of Kafka 2.8 to 4.3. Tools such as MirrorMaker and Terraform send all of them, most
with their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparklog.errors import InvalidConfigError
from sparklog.settings import Scope, Setting, settings_of

LONG_MAX = 2**63 - 1
"""Kafka's value for "no limit"."""
NUMBER_MAX = 2**62
"""Sparklog's largest number in a setting, which is no limit either."""
_NEVER = frozenset({"flush.messages", "flush.ms"})
"""Settings whose default -1 means never, as LONG_MAX does in Kafka."""
_LEVELS = "only the default level of the codec is used: leave the setting out"
_REMOTE = "sparklog has no such setting: use remote.storage.enable and local.retention.ms, or leave it out"
FIXED: Mapping[str, tuple[str, str]] = {
    "compression.gzip.level": ("-1", _LEVELS),
    "compression.lz4.level": ("9", _LEVELS),
    "compression.zstd.level": ("3", _LEVELS),
    "follower.replication.throttled.replicas": ("", "use `sparklog reassign throttle`"),
    "leader.replication.throttled.replicas": ("", "use `sparklog reassign throttle`"),
    "message.downconversion.enable": ("true", "batches are never converted into message formats 0 and 1"),
    "message.format.version": ("3.0-IV1", "batches have message format 2"),
    "message.timestamp.before.max.ms": (str(LONG_MAX), "records may be as old as they like"),
    "message.timestamp.difference.max.ms": (str(LONG_MAX), "use message.timestamp.after.max.ms"),
    "preallocate": ("false", "files grow as they are written"),
    "remote.copy.lag.bytes": ("0", _REMOTE),
    "remote.copy.lag.ms": ("0", _REMOTE),
    "remote.log.copy.disable": ("false", _REMOTE),
    "remote.log.delete.on.disable": ("false", _REMOTE),
}
"""Kafka's settings that have a fixed value here: Kafka's default, and the reason or remedy for another value."""
_FORMAT_2 = ("0.11", "1.", "2.", "3.")
"""Beginnings of the values of `message.format.version` that mean message format 2."""


def parse_settings(texts: Mapping[str, str | None], *, keep_null: bool = False) -> dict[str, Any]:
    """Return a topic's settings from Kafka's texts. A setting with the text None is left out, or with `keep_null` is
    None in the result. Raises InvalidConfigError."""
    settings = settings_of(Scope.TOPIC)
    parsed: dict[str, Any] = {}
    for name, text in texts.items():
        if name in FIXED:
            _check_fixed(name, text)
        elif name not in settings:
            raise InvalidConfigError(f"unknown topic setting {name!r}; known are {', '.join([*settings, *FIXED])}")
        elif text is not None:
            parsed[name] = settings[name].parse(own_text(settings[name], text))
        elif keep_null:
            parsed[name] = None
    return parsed


def kafka_text(setting: Setting, value: Any) -> str:
    """Return the text of a setting's value for Kafka's clients."""
    if isinstance(value, bool):
        return str(value).lower()
    if setting.name in _NEVER and value == -1:
        return str(LONG_MAX)
    if setting.maximum == NUMBER_MAX and value == NUMBER_MAX:
        return str(LONG_MAX)
    return str(value)


def own_text(setting: Setting, text: str) -> str:
    """Return Kafka's text of a setting in the form that `Setting.parse` takes."""
    if text.strip() == str(LONG_MAX):
        return "-1" if setting.name in _NEVER else str(setting.maximum if setting.maximum == NUMBER_MAX else LONG_MAX)
    if setting.name == "cleanup.policy":  # a list of Kafka, in any order
        return ",".join(sorted({part.strip() for part in text.split(",")}))
    return text


def _check_fixed(name: str, text: str | None) -> None:
    value, reason = FIXED[name]
    if text is None or text.strip().lower() == value.lower():
        return
    if name == "message.format.version" and text.strip().startswith(_FORMAT_2):
        return
    raise InvalidConfigError(f"{name} = {text!r}: only {value!r} is possible; {reason}")
