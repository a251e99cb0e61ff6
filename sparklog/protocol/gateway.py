"""Messages between a broker and the gateway process beside it.

The broker starts the gateway with a `GatewayStart`, which the gateway reads from an inherited descriptor. The gateway
makes one connection to the broker for each of its clients. On the broker's own Unix socket for gateways the connection
begins with a preamble, before the first frame: the client, as the gateway's listener knows it::

    offset  size  field
    0       4     length u32, little-endian
    4       n     `OnBehalf` as MessagePack

The broker takes a preamble from processes of its own user only, as the kernel knows them (SO_PEERCRED). The connection
then counts as the client's: its address for ACLs and limits, its certificate for its principal, SASL as on a listener.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from sparklog.errors import InvalidRequestError
from sparklog.format.decoders import json_decoder, msgpack_decoder

LENGTH = struct.Struct("<I")
PREAMBLE_BYTES_MAX = 64 * 1024
_Host = Annotated[str, Meta(max_length=255)]
_Port = Annotated[int, Meta(ge=0, le=65_535)]


class OnBehalf(Struct, array_like=True, frozen=True):
    """The client of a gateway's connection."""

    client_host: _Host
    client_port: _Port
    local_host: _Host
    """The gateway's address that the client has connected to."""
    local_port: _Port
    certificate: bytes = b""
    """The client's certificate (DER), verified by the gateway's TLS; empty: it has shown none."""


class GatewayListener(Struct, frozen=True):
    """One listener of a gateway."""

    name: str
    """Name in `kafka.listeners`."""
    host: str
    port: int
    protocol: str
    """Security protocol."""
    descriptor: int
    """Inherited socket, which is bound."""
    local_socket: str
    """The broker's Unix socket for this listener, in the abstract namespace."""
    tls: dict[str, str | int | float | bool] = {}
    """Settings of TLS by their dotted names."""


class GatewayStart(Struct, frozen=True):
    """Settings of a gateway at its start."""

    listeners: list[GatewayListener]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgpack_decoder(OnBehalf)
_START = json_decoder(GatewayStart)


def encode_preamble(client: OnBehalf) -> bytes:
    """Return the preamble of a connection."""
    body = _ENCODER.encode(client)
    return LENGTH.pack(len(body)) + body


def decode_preamble(body: bytes) -> OnBehalf:
    """Return the client of a connection. Raises InvalidRequestError."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise InvalidRequestError(f"a gateway's preamble cannot be read: {e}") from e


def encode_start(start: GatewayStart) -> bytes:
    """Return JSON of a start."""
    return msgspec.json.encode(start)


def decode_start(data: bytes) -> GatewayStart:
    """Return the start that the JSON in `data` describes. Raises InvalidRequestError."""
    try:
        return _START.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise InvalidRequestError(f"the gateway's start cannot be read: {e}") from e
