"""The base of all messages, and the types of fields with their bounds."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

PARTITIONS_PER_REQUEST_MAX = 100_000
TOPICS_PER_REQUEST_MAX = 10_000
PARTITIONS_PER_TOPIC_MAX = 10_000
CONFIGS_MAX = 200

Name = Annotated[str, Meta(max_length=249)]
TopicId = Annotated[str, Meta(max_length=64)]
Partition = Annotated[int, Meta(ge=0, le=PARTITIONS_PER_TOPIC_MAX - 1)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Text = Annotated[str, Meta(max_length=65_536)]
ConfigValue = Text | int | float | bool | None
"""Value of a setting. The decoder does not check that the setting accepts this value."""


class Since(NamedTuple):
    """Mark of a field that was added after version 0: `Annotated[bool, Since(1)] = False`. Such a field needs a
    default.

    A message in an older version is sent without the field. If the field has another value than its default, and is not
    `ignorable`, the message cannot be sent in that version: the peer would ignore a value that must not be ignored. See
    `sparklog.protocol.versions`.
    """

    version: int
    ignorable: bool = False


ThrottleMs = int
"""Field of an answer: time in ms for which the broker reads nothing more from the connection, because of a quota. The
broker computes the time after the rest of the answer."""


MetadataVersion = tuple[Int64, Int64]
"""Version of the metadata that a broker uses: the controller's epoch, and the zxid of the controller's write. A newer
version compares as greater."""
NO_VERSION: MetadataVersion = (-1, -1)
"""The version of a broker that has no metadata yet."""
AnswerVersion = MetadataVersion
"""Field of the answer to a change: the metadata version that the answering broker uses now. The version includes the
change."""
AtLeast = MetadataVersion
"""Field of a request: the metadata version of an earlier change by the client. A broker with older metadata waits for
this version before it answers, but only a few seconds."""


class Message(Struct, array_like=True, gc=False):
    """Base of all messages."""
