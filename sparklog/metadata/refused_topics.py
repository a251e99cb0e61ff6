"""The topics of refused records: `<topic>.refused` has a row for each record that does not fit the typed topic.

A mirror creates and fills the refused topics of its typed topics. With `kafka.refused.records = topic` the gateway's
broker creates it at the first such record of a producer.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from sparklog.errors import InvalidConfigError
from sparklog.format.key_format import REFUSED_SETTING, REFUSED_TO_TOPIC
from sparklog.format.schema import HEADER_TYPE, TIMESTAMP_TYPE
from sparklog.protocol.refused_messages import STORED_BYTES_MAX
from sparklog.settings import Scope, settings_of
from sparklog.types import TOPIC_NAME_CHARS_MAX

SUFFIX = ".refused"
REASON_CHARS_MAX = 1_000
REFUSED_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADER_TYPE),
        ("timestamp", TIMESTAMP_TYPE),
        ("reason", pa.string()),
        ("client_id", pa.string()),
        ("number", pa.int64()),
    ]
)
"""Columns of a refused topic. `partition` and `offset`: place of the record in its topic, where the offset has no row,
or at the source of a mirror. `number`: number of refused records of the partition up to this one; null for those of a
producer."""


def refused_topic(topic: str) -> str:
    """Return the name of a topic's refused topic."""
    return topic + SUFFIX


def refused_topic_settings(configs: Mapping[str, object]) -> dict[str, int]:
    """Return the settings of a refused topic. `configs`: those of the typed topic. Rows stay until they are deleted,
    and are larger than the records by the reason, and because the records can have come in a compressed batch."""
    limit = settings_of(Scope.TOPIC)["max.message.bytes"]
    size = max(2 * int(str(configs.get(limit.name, limit.default))), STORED_BYTES_MAX)
    return {"retention.ms": -1, "retention.bytes": -1, limit.name: min(size, int(limit.maximum or size))}


def check_refused_records(topic: str, configs: Mapping[str, object], *, is_typed: bool) -> None:
    """Raise InvalidConfigError if the settings ask for a refused topic that the topic cannot have."""
    if configs.get(REFUSED_SETTING) != REFUSED_TO_TOPIC:
        return
    if not is_typed:
        reason = "an envelope topic takes each record; create a topic with columns, or leave the setting out"
    elif len(refused_topic(topic)) > TOPIC_NAME_CHARS_MAX:
        reason = f"the name {refused_topic(topic)!r} would have more than {TOPIC_NAME_CHARS_MAX} characters; use a shorter name"
    else:
        return
    raise InvalidConfigError(f"topic {topic!r}: {REFUSED_SETTING}={REFUSED_TO_TOPIC}: {reason}")
