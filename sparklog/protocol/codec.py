"""Encoding and decoding of messages, in the versions of the table of APIs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from sparklog.errors import InvalidRequestError, UnsupportedApiError, UnsupportedVersionError
from sparklog.format.decoders import msgpack_decoder
from sparklog.protocol.apis import APIS, Api, ApiSpec
from sparklog.protocol.base import Message
from sparklog.protocol.messages import ErrorBody
from sparklog.protocol.versions import forget_newer, in_version

_ENCODER = msgspec.msgpack.Encoder()
_ERROR_DECODER = msgpack_decoder(ErrorBody)


class _Decoders(dict[Api, msgspec.msgpack.Decoder[Any]]):
    """Decoders of messages, created at their first use: creating all of them takes longer than the rest of the
    import."""

    def __init__(self, type_of: Callable[[ApiSpec], type[Message]]) -> None:
        super().__init__()
        self._type_of = type_of

    def __missing__(self, api: Api) -> msgspec.msgpack.Decoder[Any]:
        decoder = self[api] = msgpack_decoder(self._type_of(APIS[api]))
        return decoder


_REQUEST_DECODERS = _Decoders(lambda spec: spec.request)
_RESPONSE_DECODERS = _Decoders(lambda spec: spec.response)

M = TypeVar("M", bound=Message)


def encode(message: Message, version: int | None = None) -> bytes:
    """Encode the message as MessagePack. `version`: encode only the fields of this older version; None: all fields.
    Raises UnsupportedVersionError if a field that must not be ignored would be left out."""
    return _ENCODER.encode(message if version is None else in_version(message, version))


def encode_value(value: object, version: int | None = None) -> bytes:
    """Encode the value of one field. `version` and the error are those of `encode`."""
    return _ENCODER.encode(value if version is None else in_version(value, version))


def older_version(api: int, version: int) -> int | None:
    """Return `version` if the API has a newer one, otherwise None, for `encode`."""
    return version if version < APIS[api].version_max else None  # type: ignore[index]


def decode_request(api: int, version: int, header: bytes | bytearray | memoryview) -> Message:
    """Decode a request. Raises UnsupportedApiError, UnsupportedVersionError or InvalidRequestError, nothing else."""
    spec = APIS.get(api)  # type: ignore[call-overload]
    if spec is None:
        raise UnsupportedApiError(f"API {api} is unknown to this broker: upgrade the broker, or use an older client")
    if not spec.version_min <= version <= spec.version_max:
        raise UnsupportedVersionError(
            f"{Api(api).name} version {version}: this broker speaks {spec.version_min} to {spec.version_max}",
            supported=(spec.version_min, spec.version_max),
        )
    try:
        message: Message = _REQUEST_DECODERS[Api(api)].decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise InvalidRequestError(f"{Api(api).name} request cannot be read: {e}") from e
    if version < spec.version_max:
        forget_newer(message, version)
    return message


def decode_response(api: Api, header: bytes | bytearray | memoryview, response_type: type[M]) -> M:
    """Decode a successful response of `api`. Raises InvalidRequestError if it cannot be read, or does not have the
    type."""
    try:
        message = _RESPONSE_DECODERS[api].decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise InvalidRequestError(f"{api.name} response cannot be read: {e}") from e
    if not isinstance(message, response_type):
        raise InvalidRequestError(f"{api.name} is answered with {type(message).__name__}, not {response_type.__name__}")
    return message


def decode_error(header: bytes | bytearray | memoryview) -> str:
    """Return the text of an error response. If the response cannot be read, the text says so."""
    return decode_error_body(header).message


def decode_error_body(header: bytes | bytearray | memoryview) -> ErrorBody:
    """Return the body of an error response. If the response cannot be read, the body's text says so."""
    try:
        return _ERROR_DECODER.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ErrorBody("the error's text cannot be read")
