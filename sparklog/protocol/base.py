"""What all messages share: their base, and the types of fields with their bounds."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

PARTITIONS_PER_REQUEST_MAX = 100_000
TOPICS_PER_REQUEST_MAX = 10_000
PARTITIONS_PER_TOPIC_MAX = 10_000
CONFIGS_MAX = 200

Name = Annotated[str, Meta(max_length=249)]
Partition = Annotated[int, Meta(ge=0, le=PARTITIONS_PER_TOPIC_MAX - 1)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Text = Annotated[str, Meta(max_length=65_536)]
ConfigValue = Text | int | float | bool | None
"""Of a setting; whether it is one that the setting takes is checked later."""


class Since(NamedTuple):
    """Marks a field that came after version 0: `Annotated[bool, Since(1)] = False`. It has a default.

    In an older version it is left out. If it has another value than its default, and is not `ignorable`, the message
    cannot be sent in that version: the peer would ignore what must not be ignored. See `sparklog.protocol.versions`.
    """

    version: int
    ignorable: bool = False


ThrottleMs = Annotated[int, Since(3, ignorable=True)]
"""Of an answer: for so long the broker reads nothing more from the connection (a quota). It is known last, when the
rest of the answer has been made."""


MetadataVersion = tuple[Int64, Int64]
"""Of what a broker of a cluster goes by: its controller's epoch, and the zxid of the write. Ordered."""
NO_VERSION: MetadataVersion = (-1, -1)
"""Of a broker that is alone, or of an earlier release."""
AnswerVersion = Annotated[MetadataVersion, Since(4, ignorable=True)]
"""Of an answer to a change: what the broker goes by now, which has the change."""
AtLeast = Annotated[MetadataVersion, Since(4, ignorable=True)]
"""Of a request: who asks has made a change that is in this version. A broker that is behind answers when it has it, or
after a few seconds."""


class Message(Struct, array_like=True, gc=False):
    """Base of all messages."""
