"""One gateway at a time serves the Kafka clients of a broker."""

from __future__ import annotations

import pytest
from sparklog_broker.network.connection import State
from sparklog_broker.network.gateway_claim import PRUNED_FROM, GatewayClaim

from sparklog.errors import CoordinatorNotAvailableError, PolicyViolationError
from sparklog.protocol.gateway import CLAIM_DOUBT_S, CLAIM_SESSION_S


class Connection:
    def __init__(self, gateway: str, *, is_identified: bool = True) -> None:
        self.gateway = gateway
        self.is_identified = is_identified
        self.state = State.OPEN


def test_the_gateway_with_open_connections_has_the_claim() -> None:
    claim = GatewayClaim(lambda: 0.0)
    first, second = Connection("a"), Connection("a")
    claim.check(first)
    claim.check(second)
    with pytest.raises(PolicyViolationError, match="gateway b is refused: gateway a serves"):
        claim.check(Connection("b"))
    first.state = State.CLOSED
    claim.check(second)
    with pytest.raises(PolicyViolationError):
        claim.check(Connection("b"))
    second.state = State.CLOSED
    third = Connection("b")
    claim.check(third)
    with pytest.raises(PolicyViolationError, match="gateway a is refused"):
        claim.check(Connection("a"))


def test_unauthenticated_connections_cannot_claim() -> None:
    claim = GatewayClaim(lambda: 0.0)
    stranger = Connection("a", is_identified=False)
    claim.check(stranger)
    client = Connection("b")
    claim.check(client)
    stranger.is_identified = True
    with pytest.raises(PolicyViolationError):
        claim.check(stranger)


def test_a_broker_with_a_gateway_of_its_own_takes_no_other() -> None:
    claim = GatewayClaim(lambda: 0.0, "kafka.PLAINTEXT://127.0.0.1:9092")
    with pytest.raises(PolicyViolationError, match=r"kafka\.PLAINTEXT://127"):
        claim.check(Connection("a"))


def test_a_silent_gateway_with_open_connections_loses_its_claim_after_a_session() -> None:
    now_s = [100.0]
    claim = GatewayClaim(lambda: now_s[0])
    silent, other = Connection("a"), Connection("b")
    claim.check(silent)
    now_s[0] += CLAIM_SESSION_S
    claim.check(silent)  # each request extends the claim
    for silent_s, refusal in (
        (0, PolicyViolationError),
        (CLAIM_DOUBT_S - 0.01, PolicyViolationError),
        (CLAIM_DOUBT_S, CoordinatorNotAvailableError),
        (CLAIM_SESSION_S - 0.01, CoordinatorNotAvailableError),
    ):
        now_s[0] = 100.0 + CLAIM_SESSION_S + silent_s
        with pytest.raises(refusal, match="gateway a serves the Kafka clients") as refused:
            claim.check(other)
        assert f"{CLAIM_SESSION_S:.0f} s" in str(refused.value)
    now_s[0] = 100.0 + 2 * CLAIM_SESSION_S
    claim.check(other)
    with pytest.raises(PolicyViolationError, match="gateway a is refused"):
        claim.check(silent)


def test_refused_and_unauthenticated_requests_do_not_extend_a_claim() -> None:
    now_s = [0.0]
    claim = GatewayClaim(lambda: now_s[0])
    claim.check(Connection("a"))
    now_s[0] = CLAIM_SESSION_S
    claim.check(Connection("a", is_identified=False))
    claim.check(Connection("b"))


def test_closed_connections_are_not_kept() -> None:
    claim = GatewayClaim(lambda: 0.0)
    for _ in range(3 * PRUNED_FROM):
        connection = Connection("a")
        claim.check(connection)
        connection.state = State.CLOSED
    assert len(claim._connections) <= PRUNED_FROM
