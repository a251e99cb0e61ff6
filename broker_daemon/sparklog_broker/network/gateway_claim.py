"""The rule that one gateway at a time serves a broker's Kafka clients.

A gateway keeps the members of its clients' groups in its own memory. Two gateways of one broker would assign all
partitions of a group twice. A connection of a gateway names the gateway in its HANDSHAKE. The gateway whose
authenticated connections are open has the claim; the broker refuses the requests of any other gateway. The claim ends
with the gateway's last connection, so that another gateway replaces a killed one at once. A broker with
`kafka.listeners` starts its own gateway, whose connections name no gateway: it has the claim always.
"""

from __future__ import annotations

from typing import Protocol

from sparklog.errors import PolicyViolationError
from sparklog_broker.network.connection import State

PRUNED_FROM = 1_000
"""Number of kept connections from which closed ones are removed before a new one is added."""


class Claimant(Protocol):
    """A gateway's connection, made for one of its clients."""

    @property
    def gateway(self) -> str:
        """Name of the gateway."""

    @property
    def state(self) -> State: ...

    @property
    def is_identified(self) -> bool:
        """True if the client has authenticated, or need not."""


class GatewayClaim:
    """The claim on one broker. Event-loop thread only."""

    def __init__(self, own_gateway: str = "") -> None:
        """`own_gateway`: the addresses of the broker's own gateway; "" if it has none."""
        self._own_gateway = own_gateway
        self._connections: set[Claimant] = set()
        """Connections of the gateway that has the claim; some may have closed."""
        self._prune_at = PRUNED_FROM

    def check(self, connection: Claimant) -> None:
        """Check a request of a gateway's connection, and give the claim to its gateway if no other has it. Raises
        PolicyViolationError."""
        if self._own_gateway:
            raise PolicyViolationError(
                f"gateway {connection.gateway} is refused: this broker has a gateway of its own, {self._own_gateway} "
                "(kafka.listeners). Two gateways would assign the partitions of a group twice. Add an address to "
                "kafka.listeners instead, or remove kafka.listeners"
            )
        if connection in self._connections:
            return
        holder = next((c for c in self._connections if c.gateway != connection.gateway), None)
        if holder is not None and self._has_open():
            raise PolicyViolationError(
                f"gateway {connection.gateway} is refused: gateway {holder.gateway} serves the Kafka clients of this "
                "broker. Two gateways would assign the partitions of a group twice. Stop one of them, or start it "
                "for another broker"
            )
        if not connection.is_identified:  # a client that cannot authenticate must not keep other gateways away
            return
        if len(self._connections) >= self._prune_at:
            self._has_open()
        self._connections.add(connection)

    def _has_open(self) -> bool:
        """Remove closed connections, and return True if there are open ones."""
        self._connections = {c for c in self._connections if c.state is not State.CLOSED}
        self._prune_at = max(PRUNED_FROM, 2 * len(self._connections))
        return bool(self._connections)
