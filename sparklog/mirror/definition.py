"""The definition of a mirror, as the settings of its topics repeat it, and the choice of topics and groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from sparklog.errors import InvalidConfigError
from sparklog.metadata.mirror_settings import NAME, SOURCE, SOURCE_TOPIC_ID
from sparklog.settings import MIRROR_PREFIX, Scope, settings_of

KAFKA = "kafka://"
SOURCE_CONFIG, TOPICS, GROUPS = "mirror.source.config", "mirror.topics", "mirror.groups"
PAUSED, LOST = "mirror.paused", "mirror.lost"
NAME_CHARS_MAX = 100
PATTERN_CHARS_MAX = 1_000
SOURCE_NAME_CHARS_MAX = 249
"""Longest name of a topic or group of the source that is compared with an expression."""
LOST_RANGES_MAX = 200
"""Largest number of lost ranges that a topic's setting lists; later ones are only in the worker's log."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")


class MirrorDefinition(Struct, frozen=True):
    """One mirror: its source, and the topics and groups that it copies."""

    name: str
    source: str
    """Address of the source: kafka://HOST:PORT, several with commas."""
    source_config: str = ""
    """Properties file with the client settings for the source; empty: plaintext."""
    topics: str = ""
    """Regular expressions of the topics, separated by commas."""
    groups: str = ""
    """Regular expressions of the groups, separated by commas; empty: no group."""

    @property
    def bootstrap_servers(self) -> str:
        """The source's brokers, as host:port separated by commas."""
        return self.source.removeprefix(KAFKA)

    def settings(self, source_topic_id: str) -> dict[str, object]:
        """Return the settings of a new topic of the mirror. `source_topic_id`: "" if the source has no ids."""
        settings: dict[str, object] = {
            NAME: self.name,
            SOURCE: self.source,
            SOURCE_CONFIG: self.source_config,
            TOPICS: self.topics,
            GROUPS: self.groups,
            SOURCE_TOPIC_ID: source_topic_id,
        }
        return {name: value for name, value in settings.items() if value}


class MirroredTopic(Struct, frozen=True):
    """A topic of a mirror, by its settings."""

    topic: str
    definition: MirrorDefinition
    source_topic_id: str
    """Id of the source's topic; "" if the source had no ids."""
    paused: str
    """Reason of the pause; "": not paused."""
    lost: tuple[str, ...]
    """Lost ranges, as PARTITION:FIRST-END."""


def mirrored_topic(topic: str, configs: Mapping[str, object]) -> MirroredTopic | None:
    """Return the topic's state as a mirrored topic; None if no mirror fills it."""

    def text(name: str) -> str:
        return str(configs.get(name) or "")

    if not text(NAME):
        return None
    definition = MirrorDefinition(text(NAME), text(SOURCE), text(SOURCE_CONFIG), text(TOPICS), text(GROUPS))
    lost = tuple(part for part in text(LOST).split(",") if part)
    return MirroredTopic(topic, definition, text(SOURCE_TOPIC_ID), text(PAUSED), lost)


def promoted_settings() -> dict[str, object | None]:
    """Return the change of settings that opens a topic for writers."""
    return {name: None for name in settings_of(Scope.TOPIC) if name.startswith(MIRROR_PREFIX)}


def with_lost(lost: Iterable[str], partition: int, first: int, end: int) -> str:
    """Return the setting with one more lost range. It replaces a range with the same first offset, which was noted
    before the source deleted more records."""
    ranges = dict(part.rsplit("-", 1) for part in lost if "-" in part)
    ranges[f"{partition}:{first}"] = str(end)
    return ",".join([f"{begin}-{end}" for begin, end in ranges.items()][:LOST_RANGES_MAX])


def lost_records(lost: Iterable[str]) -> dict[int, int]:
    """Return the number of lost offsets by partition."""
    counts: dict[int, int] = {}
    for part in lost:
        partition, _, bounds = part.partition(":")
        first, _, end = bounds.partition("-")
        if partition.isdecimal() and first.isdecimal() and end.isdecimal():
            counts[int(partition)] = counts.get(int(partition), 0) + int(end) - int(first)
    return counts


def check_definition(definition: MirrorDefinition) -> None:
    """Raise InvalidConfigError for a definition that no mirror can have."""
    if not _NAME.fullmatch(definition.name) or len(definition.name) > NAME_CHARS_MAX:
        raise InvalidConfigError(
            f"mirror {definition.name!r}: a name has 1 to {NAME_CHARS_MAX} letters, digits, dots, hyphens and "
            "underscores"
        )
    if not definition.source.startswith(KAFKA) or not definition.bootstrap_servers:
        raise InvalidConfigError(
            f"source {definition.source!r}: use {KAFKA}HOST:PORT, several brokers with commas: {KAFKA}a:9092,b:9092"
        )
    if not definition.topics:
        raise InvalidConfigError("no topics: name them by regular expressions with commas, such as 'orders,logs-.*'")
    for pattern in (definition.topics, definition.groups):
        matcher(pattern)


def matcher(patterns: str) -> re.Pattern[str]:
    """Return the expression that matches a whole name by one of the comma-separated `patterns`. Raises
    InvalidConfigError."""
    if len(patterns) > PATTERN_CHARS_MAX:
        raise InvalidConfigError(f"a pattern of {len(patterns)} characters; at most {PATTERN_CHARS_MAX} are allowed")
    parts = [part.strip() for part in patterns.split(",") if part.strip()]
    try:
        for part in parts:
            re.compile(part)
        return re.compile("|".join(f"(?:{part})" for part in parts) if parts else r"(?!)")
    except re.error as e:
        raise InvalidConfigError(f"pattern {patterns!r:.200} is no regular expression: {e}") from e
