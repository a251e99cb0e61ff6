"""Records of `__transaction_state`.

Keys and values are MessagePack arrays that begin with a version number (0)::

    key                          value
    [0, "plain", id]             [0, state, producer_id, producer_epoch, previous_producer_id, previous_epoch,
                                  next_producer_id, timeout_ms, started_ms, updated_ms, partitions]
    [0, "shared", id]            [0, last_committed_version, run_id, fencing_token, [older run_id, …], updated_ms,
                                  null | [version, run_id, fencing_token, state, started_ms, timeout_ms,
                                          [committed producer_id, …], input, lease_ms],
                                  last_committed_input]
    [0, "participant", id, pid]  [0, version, fencing_token, partitions]

`state` is a number of `State`, `partitions` [[topic, [partition, …]], …]. A participant belongs to the transaction with
its version and fencing token; the batch that completes the transaction deletes the participant's record (a null value).
`run_id` and `fencing_token` of a shared id are those of the newest run; inside the brackets they are those of the run
that opened the transaction. `input` is the application's description of the data of the version. Records of older
brokers lack `input`, `lease_ms` and `last_committed_input`; the defaults are "", 0 and "".

The CRC of a batch covers its records. If the topic is lost, the broker knows no transactions. A transaction that is
open in a partition then stays open until `sparklog transaction abort` ends it there, and applications could commit
versions again.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sparklog.errors import LogCorruptError
from sparklog.format.decoders import msgpack_decoder
from sparklog.types import TopicPartition

VERSION = 0
PLAIN, SHARED, PARTICIPANT = "plain", "shared", "participant"

Partitions = list[tuple[str, list[int]]]


class PlainValue(msgspec.Struct, array_like=True):
    """The stored state of a plain transactional id."""

    format: int
    state: int
    producer_id: int
    producer_epoch: int
    previous_producer_id: int
    previous_epoch: int
    next_producer_id: int
    timeout_ms: int
    started_ms: int
    updated_ms: int
    partitions: Partitions


class SharedTransactionValue(msgspec.Struct, array_like=True):
    """The part in brackets of a shared id's value: its newest transaction."""

    version: int
    run_id: str
    fencing_token: int
    state: int
    started_ms: int
    timeout_ms: int
    committed_participants: list[int]
    input: str = ""
    lease_ms: int = 0


class SharedValue(msgspec.Struct, array_like=True):
    """The stored state of an application's shared transactions."""

    format: int
    last_committed_version: int
    run_id: str
    fencing_token: int
    older_runs: list[str]
    updated_ms: int
    transaction: SharedTransactionValue | None
    last_committed_input: str = ""


class ParticipantValue(msgspec.Struct, array_like=True):
    """The stored state of a participant of a shared transaction."""

    format: int
    version: int
    fencing_token: int
    partitions: Partitions


Value = PlainValue | SharedValue | ParticipantValue

_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgpack_decoder(list[int | str]).decode
_decoders: dict[str, msgspec.msgpack.Decoder[Value]] = {
    PLAIN: msgpack_decoder(PlainValue),
    SHARED: msgpack_decoder(SharedValue),
    PARTICIPANT: msgpack_decoder(ParticipantValue),
}


def encode_key(kind: str, *parts: str | int) -> bytes:
    """Encode the key of a record. `kind` is PLAIN, SHARED or PARTICIPANT; `parts` are the key's elements after it."""
    return _encode([VERSION, kind, *parts])


def encode_value(value: Value) -> bytes:
    """Encode the value of a record."""
    return _encode(value)


def decode(key: bytes, value: bytes | None) -> tuple[str, list[int | str], Value | None]:
    """Return the kind of a record, the key's elements after the kind, and the value (None for a tombstone). Raises
    LogCorruptError for a record that this release cannot read."""
    try:
        version, kind, *parts = _decode_key(key)
        if version != VERSION or kind not in _decoders:
            raise LogCorruptError(
                f"a record of transaction state of kind {kind!r}, version {version}: use a newer broker"
            )
        decoded: Value | None = None if value is None else _decoders[str(kind)].decode(value)
    except (msgspec.DecodeError, ValueError, TypeError) as e:
        raise LogCorruptError(f"a record of transaction state cannot be read: {e}") from e
    if decoded is not None and decoded.format != VERSION:
        raise LogCorruptError(f"a record of transaction state has version {decoded.format}: use a newer broker")
    return str(kind), parts, decoded


def pack_partitions(partitions: Iterable[TopicPartition]) -> Partitions:
    """Group the partitions by topic."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    return list(by_topic.items())


def unpack_partitions(packed: Partitions) -> set[TopicPartition]:
    """Return the set of partitions that `pack_partitions` has grouped."""
    return {TopicPartition(topic, number) for topic, numbers in packed for number in numbers}
