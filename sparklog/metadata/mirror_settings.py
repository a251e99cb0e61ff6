"""Rules of a topic's mirror settings. A topic with `mirror.name` is mirrored: only the mirror writes to it.

The mirror's definition is repeated in the settings of each of its topics, so that a mirror is the set of its topics.
`sparklog mirror create` creates the topics with these settings. `sparklog mirror promote` removes all of them, and
keeps the id of the source's topic in `mirror.promoted.topic.id`.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparklog.errors import InvalidConfigError, PolicyViolationError
from sparklog.settings import MIRROR_PREFIX

NAME = "mirror.name"
SOURCE = "mirror.source"
SOURCE_TOPIC_ID = "mirror.source.topic.id"
REFUSED_OF = "mirror.refused.of"
PROMOTED_TOPIC_ID = "mirror.promoted.topic.id"
VALUE_FORMAT = "mirror.value.format"
SPARKLOG = "sparklog://"
"""Beginning of the address of a source that is a sparklog cluster. Its typed topics keep their columns."""
FIXED = (NAME, SOURCE_TOPIC_ID, REFUSED_OF)
"""Settings that stay as they were at the topic's creation until its promotion."""


def check_mirror_settings(name: str, before: Mapping[str, object], after: Mapping[str, object]) -> None:
    """Check a topic's settings after a change. `before`: settings before the change; those of a new topic for a new
    topic. Raises InvalidConfigError: The change would let a mirror fill a topic that it has not created, or leave a
    part of a mirror's settings."""
    _check_promotion(name, before, after)
    if not after.get(NAME):
        remains = sorted(
            setting
            for setting in after
            if setting.startswith(MIRROR_PREFIX) and after[setting] and setting != PROMOTED_TOPIC_ID
        )
        if remains:
            raise InvalidConfigError(
                f"topic {name!r}: {remains[0]} without {NAME} has no effect; use 'sparklog mirror promote', which "
                "removes all settings of the mirror"
            )
        return
    if not before.get(NAME):
        raise InvalidConfigError(
            f"topic {name!r} exists already, and a mirror keeps the offsets of its source: use 'sparklog mirror create' "
            "with a topic that does not exist here"
        )
    for setting in FIXED:
        if before.get(setting, "") != after.get(setting, ""):
            raise InvalidConfigError(
                f"topic {name!r}: {setting} cannot be changed from {before.get(setting, '')!r} to "
                f"{after.get(setting, '')!r}: the topic has the records of its source"
            )
    if not after.get(SOURCE):
        raise InvalidConfigError(f"topic {name!r}: {NAME} needs {SOURCE}, such as kafka://host:9092")


def _check_promotion(name: str, before: Mapping[str, object], after: Mapping[str, object]) -> None:
    """Raise InvalidConfigError for an id of which the topic was not the copy."""
    promoted = after.get(PROMOTED_TOPIC_ID, "")
    allowed = {"", before.get(PROMOTED_TOPIC_ID, "")}
    if before.get(NAME) and not after.get(NAME):
        allowed.add(before.get(SOURCE_TOPIC_ID, ""))
    if promoted not in allowed or (promoted and after.get(NAME)):
        raise InvalidConfigError(
            f"topic {name!r}: {PROMOTED_TOPIC_ID} cannot be {promoted!r}: only 'sparklog mirror promote' sets it, to the "
            f"{SOURCE_TOPIC_ID} of the topic"
        )


def check_mirrored_kind(name: str, configs: Mapping[str, object], *, is_typed: bool) -> None:
    """Raise InvalidConfigError for a new mirrored topic of the wrong kind: values with a format become columns."""
    has_columns = bool(configs.get(VALUE_FORMAT) or configs.get(REFUSED_OF))
    if not configs.get(NAME) or is_typed == has_columns or str(configs.get(SOURCE)).startswith(SPARKLOG):
        return
    if is_typed:
        raise InvalidConfigError(
            f"topic {name!r}: a mirror fills columns from values with a format only; set {VALUE_FORMAT}, or leave the "
            "columns out"
        )
    raise InvalidConfigError(f"topic {name!r}: {VALUE_FORMAT} needs a typed topic; create it with columns")


def check_writable(name: str, configs: Mapping[str, object], *, by_mirror: bool) -> None:
    """Raise PolicyViolationError if a mirror fills the topic and the writer is not the mirror, or the other way round.
    `configs`: the settings of the topic itself."""
    mirror = configs.get(NAME, "")
    if mirror and not by_mirror:
        raise PolicyViolationError(
            f"topic {name!r} is read-only: the mirror {mirror!r} fills it; 'sparklog mirror promote {mirror} {name}' "
            "opens it for writers"
        )
    if by_mirror and not mirror:
        raise PolicyViolationError(
            f"topic {name!r} is not mirrored: the broker assigns the offsets of its records; a mirror writes to topics "
            "that 'sparklog mirror create' has created"
        )
