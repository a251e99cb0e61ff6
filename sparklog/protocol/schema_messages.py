"""Messages of the schema registry: the exchange of records with its log, the internal topic `__schemas`.

Only gateways send the request for their clients, and brokers to the leader of the log. One exchange checks the client's
permission, appends records if nobody has appended others before, and returns the records that the gateway lacks.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import Int64, Message, ThrottleMs

RECORDS_MAX = 10_000
RECORD_BYTES_MAX = 2 * 1024 * 1024
"""Largest value of a record: a schema with its descriptor."""
EXCHANGED_BYTES_MAX = 1024 * 1024
"""Size in bytes after which an answer has no further record."""
SUBJECTS_PER_REQUEST_MAX = 10_000
NO_END = -1
_Subject = Annotated[str, Meta(max_length=255)]
_Operation = Annotated[str, Meta(max_length=32)]


class SchemaRecord(Message):
    """One record of the log. `value` None deletes the key."""

    key: Annotated[bytes, Meta(max_length=4096)]
    value: Annotated[bytes, Meta(max_length=RECORD_BYTES_MAX)] | None


class SchemaRecordsRequest(Message):
    """Read the records from an offset on. With `records`, append them before, if the log ends at `expected_end`.
    `operation`: the name of the operation that the client needs on `topics`, or with `is_on_cluster` on the cluster; ""
    for none. `is_forwarded`: the sender is a broker that does not lead the log."""

    from_offset: Int64
    operation: _Operation = ""
    topics: Annotated[list[_Subject], Meta(max_length=SUBJECTS_PER_REQUEST_MAX)] = []
    is_on_cluster: bool = False
    expected_end: Int64 = NO_END
    records: Annotated[list[SchemaRecord], Meta(max_length=RECORDS_MAX)] = []
    is_forwarded: bool = False


class SubjectTopic(Message):
    """The client's permission on one topic of the request."""

    error_code: int = 0


class SchemaRecordsResponse(Message):
    """`next_offset`: offset behind `records`; below `end_offset`, the offset behind all records that are replicated,
    there are more. It is below the request's `from_offset` if the log has lost records. `is_appended`: True if the
    request's records were appended. `results`: one for each topic of the request."""

    next_offset: Int64
    end_offset: Int64
    records: Annotated[list[SchemaRecord], Meta(max_length=RECORDS_MAX)]
    is_appended: bool = False
    results: Annotated[list[SubjectTopic], Meta(max_length=SUBJECTS_PER_REQUEST_MAX)] = []
    throttle_ms: ThrottleMs = 0
