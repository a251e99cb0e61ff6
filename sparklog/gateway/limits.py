"""The gateway's limits for clients."""

from __future__ import annotations

from msgspec import Struct

from sparklog.settings import MIB, Scope, settings_of

GROUP_SIZE_MAX = int(settings_of(Scope.BROKER)["group.max.size"].default)
"""Default of the broker's setting `group.max.size`."""


class Limits(Struct, frozen=True):
    """Limits of one gateway."""

    connections: int = 10_000
    """Connections at once. The gateway closes a further one."""
    connections_per_host: int = 5_000
    """Connections at once from one address."""
    unknown_connections: int = 1_000
    """Connections at once, on listeners with SASL, whose clients have not authenticated yet."""
    request_bytes: int = 100 * MIB
    """Largest PRODUCE request in bytes."""
    other_request_bytes: int = 100 * MIB
    """Largest request of any other API in bytes."""
    unknown_request_bytes: int = 128 * 1024
    """Largest request in bytes before the client has authenticated."""
    memory_bytes: int = 512 * MIB
    """Memory for the requests of all clients together, in bytes."""
    list_bytes: int = 192 * MIB
    """Memory for the decoded requests with many entries of all clients together, in bytes."""
    broker_answer_bytes: int = 256 * MIB
    """Memory for the broker's large answers to all clients together, in bytes, until they are converted."""
    conversion_bytes: int = 768 * MIB
    """Memory for the decompression and conversion of all clients' batches together, in bytes."""
    converted_bytes: int = 256 * MIB
    """Memory for converted batches of all clients' PRODUCE requests together until the broker takes them, in bytes."""
    unread_bytes: int = 384 * MIB
    """Memory for the large answers of all clients together until the clients have read them, in bytes."""
    group_bytes: int = 128 * MIB
    """Memory for the members of all groups together, in bytes. One address can use half of it."""
    group_members: int = GROUP_SIZE_MAX
    """Members of one classic group at most: the broker's `group.max.size`, or its default for a gateway that was
    started by hand."""
    fetch_session_bytes: int = 32 * MIB
    """Memory for the partitions of all fetch sessions together, in bytes."""
    fetch_sessions: int = 1_000
    """Fetch sessions at once. A client beyond it names all partitions in each request."""
    stall_s: float = 5.0
    """Time in s in which a client has to send or read 64 KiB while other clients wait for memory."""
    fetch_bytes: int = 32 * MIB
    """Largest answer to a fetch in bytes. A single batch is answered even if it is larger."""
    inflated_bytes: int = 128 * MIB
    """Largest size of a batch after decompression, in bytes."""
    pipelined: int = 8
    """PRODUCE requests of one connection that are processed at once."""
    idle_s: float = 600.0
    """Longest time between two requests; then the gateway closes the connection."""
    read_s: float = 30.0
    """Longest time until a request has arrived completely; then the gateway closes the connection."""
    write_s: float = 60.0
    """Longest time until the client has taken an answer; then the gateway closes the connection."""
    authentication_s: float = 30.0
    """Longest time until the client has authenticated, including the TLS handshake."""
