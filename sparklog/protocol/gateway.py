"""Messages between a broker and the gateway process beside it.

The broker starts the gateway with a `GatewayStart`, which the gateway reads from an inherited descriptor. The gateway
makes one connection to the broker for each of its clients. On the broker's Unix socket for gateways, a preamble comes
before the first frame. It describes the client::

    offset  size  field
    0       4     length u32, little-endian
    4       n     `OnBehalf` as MessagePack

The broker accepts a preamble only from processes of its own user, which the kernel names (SO_PEERCRED). From then on
the broker treats the connection as the client's own: the client's address counts for ACLs and limits, its certificate
gives its principal, and SASL works as on a listener.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from sparklog.errors import InvalidRequestError
from sparklog.format.decoders import json_decoder, msgpack_decoder

REFUSED_BATCHES = "refused_batches"
REFUSED_RECORDS = "refused_records"
DROPPED_FIELDS = "dropped_fields"
"""Names under which a gateway reports numbers on its standard output: refused batches, records in refused topics, and
fields of records that were dropped."""
CLAIM_SESSION_S = 15.0
"""Time in s after the last request of a gateway at which its claim on the broker ends, though its connections are open:
the gateway's host may be gone."""
CLAIM_PING_S = 2.0
"""Pause in s between two requests by which a gateway keeps its claim."""
CLAIM_DOUBT_S = 4.0
"""Time in s without a request of a gateway after which the broker tells another one to wait for the end of the claim,
rather than to stop."""
LENGTH = struct.Struct("<I")
PREAMBLE_BYTES_MAX = 64 * 1024
_Host = Annotated[str, Meta(max_length=255)]
_Port = Annotated[int, Meta(ge=0, le=65_535)]


class OnBehalf(Struct, array_like=True, frozen=True):
    """The client of a gateway's connection."""

    client_host: _Host
    client_port: _Port
    local_host: _Host
    """Address of the gateway to which the client has connected."""
    local_port: _Port
    certificate: bytes = b""
    """The client's certificate (DER), verified by the gateway's TLS; empty: the client has sent none."""


class GatewayListener(Struct, frozen=True):
    """One listener of a gateway."""

    name: str
    """Name in `kafka.listeners`."""
    host: str
    port: int
    protocol: str
    """Security protocol, such as SASL_SSL."""
    descriptor: int
    """File descriptor of the inherited socket, which is bound to the address."""
    local_socket: str
    """The broker's Unix socket for this listener, in the abstract namespace."""
    tls: dict[str, str | int | float | bool] = {}
    """TLS settings by their dotted names."""


class GatewayStart(Struct, frozen=True):
    """Settings of a gateway at its start."""

    listeners: list[GatewayListener]
    creates_typed_topics: bool = False
    """The broker's setting `auto.create.typed.topics`."""
    schema_registry_url: str = ""
    """Address of an outside schema registry; "": the cluster's own."""
    group_members: int = 10_000
    """The broker's setting `group.max.size`."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgpack_decoder(OnBehalf)
_START = json_decoder(GatewayStart)


def encode_preamble(client: OnBehalf) -> bytes:
    """Return the preamble with its length, as bytes."""
    body = _ENCODER.encode(client)
    return LENGTH.pack(len(body)) + body


def decode_preamble(body: bytes) -> OnBehalf:
    """Decode a preamble without its length. Raises InvalidRequestError if it cannot be read."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise InvalidRequestError(f"a gateway's preamble cannot be read: {e}") from e


def encode_start(start: GatewayStart) -> bytes:
    """Encode the settings as JSON."""
    return msgspec.json.encode(start)


def decode_start(data: bytes) -> GatewayStart:
    """Decode the JSON of `encode_start`. Raises InvalidRequestError if it cannot be read."""
    try:
        return _START.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise InvalidRequestError(f"the gateway's start cannot be read: {e}") from e
