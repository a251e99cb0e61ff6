"""The owners of producer ids and fencing tokens: a token of another principal, or of none, is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sparklog_broker.broker import Broker

from sparklog.errors import InvalidProducerIdMappingError
from sparklog.security.owned_ids import belongs_to, owned_id
from sparklog.security.principals import user

SECRET, NUMBER = bytes(32), 7
ALICE, MALLORY = user("alice"), user("mallory")
TOKEN = owned_id(SECRET, NUMBER, ALICE)


def broker_with(*, is_issued: bool = True, has_secret: bool = True, is_sole: bool = True) -> Any:
    """Return the parts of a broker that judge ids."""

    def is_of(producer_id: int, principal: Any, *, if_unknown: bool) -> bool:
        return belongs_to(SECRET, producer_id, principal) if has_secret else if_unknown

    storage = SimpleNamespace(metadata=SimpleNamespace(is_sole=is_sole), is_issued=lambda _: is_issued)
    broker: Any = SimpleNamespace(storage=storage, owned_ids=SimpleNamespace(is_of=is_of))
    broker.is_issued = lambda *arguments: Broker.is_issued(broker, *arguments)
    return broker


def test_a_foreign_or_invented_fencing_token_is_refused() -> None:
    Broker.check_drawn(broker_with(), TOKEN, ALICE)
    with pytest.raises(InvalidProducerIdMappingError, match=r"never issued to User:mallory: request one"):
        Broker.check_drawn(broker_with(), TOKEN, MALLORY)
    with pytest.raises(InvalidProducerIdMappingError):
        Broker.check_drawn(broker_with(is_issued=False), TOKEN, ALICE)


def test_a_token_without_an_owner_is_not_judged() -> None:
    for is_issued in (True, False):
        Broker.check_drawn(broker_with(is_issued=is_issued), NUMBER, MALLORY)


def test_an_id_is_issued_to_its_owner_alone() -> None:
    assert Broker.is_issued(broker_with(), TOKEN, ALICE)
    assert not Broker.is_issued(broker_with(), TOKEN, MALLORY)
    assert not Broker.is_issued(broker_with(is_issued=False), TOKEN, ALICE)
    assert Broker.is_issued(broker_with(), NUMBER, MALLORY), "ids without an owner are anybody's"
    assert Broker.is_issued(broker_with(has_secret=False, is_sole=False), TOKEN, MALLORY), "another broker may know it"
    assert not Broker.is_issued(broker_with(has_secret=False), TOKEN, MALLORY)
