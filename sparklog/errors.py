"""Every error sparklog raises: one table of wire codes, one exception class per code.

Names and messages may change; a code never does and is never reused (a test pins the table). A client that
receives a code it does not know raises `UnknownServerError`, which is not retriable.

`retriable` says whether the same request may succeed later without anybody changing anything.
"""

from __future__ import annotations

from typing import ClassVar


class SparklogError(Exception):
    """Base of all sparklog errors. `code` is its number on the wire, `retriable` says whether trying again can help."""

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The error's stable name in the log and on the command line, for example `OFFSET_OUT_OF_RANGE`."""
        return NAMES.get(self.code, "UNKNOWN_SERVER_ERROR")


class UnknownServerError(SparklogError):
    """The broker failed in a way it has no name for; its log has the details."""


class OffsetOutOfRangeError(SparklogError):
    """The offset is below the log start or beyond the log end."""

    code = 1


class CorruptBatchError(SparklogError):
    """A batch's bytes are not what its checksum or its header says."""

    code = 2


class UnknownTopicOrPartitionError(SparklogError):
    """No such topic, or the topic has no such partition."""

    code = 3


class InvalidTopicError(SparklogError):
    """The topic's name or definition is not acceptable."""

    code = 4


class TopicAlreadyExistsError(SparklogError):
    """A topic of this name exists already."""

    code = 5


class MessageTooLargeError(SparklogError):
    """A batch is larger than the topic's `max.message.bytes`."""

    code = 6


class InvalidRequestError(SparklogError):
    """The request breaks the protocol or one of its limits; the connection is closed after it."""

    code = 7


class UnsupportedVersionError(SparklogError):
    """The broker does not speak this version of the API."""

    code = 8


class UnsupportedApiError(SparklogError):
    """The broker has no such API."""

    code = 9


class FrameTooLargeError(SparklogError):
    """The frame is larger than `socket.request.max.bytes`."""

    code = 10


class RequestTimedOutError(SparklogError):
    """No answer within the time limit; whether the request took effect is not known."""

    code = 11
    retriable = True


class BrokerNotAvailableError(SparklogError):
    """The broker cannot be reached, or the connection broke."""

    code = 12
    retriable = True


class NotLeaderError(SparklogError):
    """This broker does not lead the partition; metadata has to be read again."""

    code = 13
    retriable = True


class StorageFullError(SparklogError):
    """The broker's disk is full. Nothing of the request was written; it can be tried again when there is space."""

    code = 14
    retriable = True


class StorageError(SparklogError):
    """Reading or writing the broker's disk failed."""

    code = 15


class SchemaMismatchError(SparklogError):
    """Data do not fit the topic's schema; the message names the column and both types."""

    code = 16


class UnknownSchemaError(SparklogError):
    """A batch names a schema id that the topic does not have."""

    code = 17


class InvalidConfigError(SparklogError):
    """A setting is unknown or its value is out of bounds."""

    code = 18


class InvalidPartitionsError(SparklogError):
    """The number of partitions, or a partition number, is not acceptable."""

    code = 19


class BrokerShuttingDownError(SparklogError):
    """The broker is stopping and takes no new requests."""

    code = 20
    retriable = True


class LogCorruptError(SparklogError):
    """A partition's files are damaged in the middle; it stays offline until it is repaired."""

    code = 21


class TooManyConnectionsError(SparklogError):
    """The broker has `max.connections` connections already."""

    code = 22
    retriable = True


class BufferExhaustedError(SparklogError):
    """The producer's `buffer.memory` stayed full for `max.block.ms`."""

    code = 23
    retriable = True


class FencedLeaderEpochError(SparklogError):
    """The request names an older leader epoch than the broker's; metadata has to be read again."""

    code = 24
    retriable = True


class UnknownLeaderEpochError(SparklogError):
    """The request names a newer leader epoch than the broker knows yet."""

    code = 25
    retriable = True


class LocalReadUnavailableError(SparklogError):
    """The broker does not offer its files for reading on the same host; the socket has to be used."""

    code = 26


class DataDirLockedError(SparklogError):
    """Another broker uses this data directory."""

    code = 27


class ClosedError(SparklogError):
    """The client, or the future's producer, has been closed."""

    code = 28


class DataLossError(SparklogError):
    """Offsets a reader still needed are gone (retention, a deleted or re-created topic)."""

    code = 29


class RemoteStorageError(SparklogError):
    """The object store of the older segments cannot be reached, or refused; it is tried again."""

    code = 60
    retriable = True


def _subclasses(cls: type[SparklogError]) -> list[type[SparklogError]]:
    return [cls, *(s for c in cls.__subclasses__() for s in _subclasses(c))]


def _snake(name: str) -> str:
    return "".join("_" + c if c.isupper() and i else c for i, c in enumerate(name)).upper()


ERRORS: dict[int, type[SparklogError]] = {
    c.code: c for c in _subclasses(UnknownServerError) + SparklogError.__subclasses__()
}
NAMES: dict[int, str] = {0: "NONE", -1: "UNKNOWN_SERVER_ERROR"} | {
    code: _snake(cls.__name__.removesuffix("Error")) for code, cls in sorted(ERRORS.items()) if code > 0
}


def error_from_code(code: int, message: str) -> SparklogError:
    """The exception for a wire code (not raised). An unknown code gives `UnknownServerError`."""
    cls = ERRORS.get(code, UnknownServerError)
    return cls(message or (cls.__doc__ or "").strip())
