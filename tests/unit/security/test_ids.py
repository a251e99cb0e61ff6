"""Producer ids with an owner, and ids of clients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparklog_broker.pipeline import client_id_of

from sparklog import Admin, Consumer, Producer
from sparklog.errors import InvalidConfigError, InvalidRequestError
from sparklog.protocol.messages import HandshakeRequest
from sparklog.security.client_ids import CLIENT_ID_CHARS_MAX, check_client_id, printable_client_id
from sparklog.security.owned_ids import SECRET_BYTES, belongs_to, is_owned, number_of, owned_id
from sparklog.security.principals import ANONYMOUS, Principal, user
from sparklog.types import PRODUCER_ID_END
from tests.support.cases import for_each

SECRET = bytes(range(SECRET_BYTES))
ALICE, MALLORY = user("alice"), user("mallory")
NUMBERS = st.integers(0, 2**38 - 1)


@given(NUMBERS, st.sampled_from([ALICE, MALLORY, ANONYMOUS, Principal("User", "ü" * 1024)]))
def test_an_id_is_its_principals(number: int, principal: Principal) -> None:
    made = owned_id(SECRET, number, principal)
    assert PRODUCER_ID_END <= made < 2**63
    assert is_owned(made)
    assert number_of(made) == number
    assert belongs_to(SECRET, made, principal)
    assert not belongs_to(SECRET, made ^ 1, principal)


@for_each("number", [0, 1, 999, 2**38 - 1])
def test_an_id_belongs_to_one_principal(number: int) -> None:
    made = owned_id(SECRET, number, ALICE)
    assert not belongs_to(SECRET, made, MALLORY)
    assert not belongs_to(SECRET, made, Principal("Group", "alice"))
    assert not belongs_to(bytes(SECRET_BYTES), made, ALICE)


@given(st.lists(NUMBERS, min_size=2, max_size=5, unique=True))
def test_ids_keep_the_order_of_their_numbers(numbers: list[int]) -> None:
    """Fencing tokens are producer ids: later ones are larger."""
    made = {owned_id(SECRET, number, ALICE): number for number in numbers}
    assert [made[i] for i in sorted(made)] == sorted(numbers)
    assert sorted(map(number_of, made)) == sorted(numbers)


def test_numbers_begin_anew_when_they_are_used_up() -> None:
    assert owned_id(SECRET, 2**38 + 7, ALICE) == owned_id(SECRET, 7, ALICE)


def test_owned_ids_begin_at_the_end_of_the_others() -> None:
    assert not is_owned(PRODUCER_ID_END - 1)
    assert is_owned(PRODUCER_ID_END)


@given(st.integers(-1, PRODUCER_ID_END - 1))
def test_other_ids_are_numbers(producer_id: int) -> None:
    assert not is_owned(producer_id)
    assert number_of(producer_id) == producer_id


# Client ids: short and printable, at the client and at the broker


HOSTILE = ["a\nb", "a\r", "\x1b[2J", "\u202eabc", "\u2028", "a\x00", "\x85", "x" * (CLIENT_ID_CHARS_MAX + 1)]


@for_each("text", ["", "etl-1", "Lagerbestände 7", "x" * CLIENT_ID_CHARS_MAX])
def test_valid_client_ids(text: str) -> None:
    assert check_client_id(text) == text
    assert client_id_of(HandshakeRequest("sparklog-python", client_id=text)) == (text or "sparklog-python")


@for_each("text", HOSTILE, ids=lambda t: ascii(t)[:12])
def test_invalid_client_ids(text: str) -> None:
    for make in (Producer, Consumer, Admin):
        with pytest.raises(InvalidConfigError, match=r"client\.id"):
            make("127.0.0.1:1", client_id=text)
    for hello in (HandshakeRequest("a", client_id=text), HandshakeRequest(text)):
        with pytest.raises(InvalidRequestError, match="printable"):
            client_id_of(hello)


@for_each("text", ["", "a\tb", "\ufeffx", "\u202eabc", "\0" * 200, "x" * 300, "é\n"], ids=ascii)
def test_an_escaped_client_id_is_one(text: str) -> None:
    escaped = printable_client_id(text)
    assert check_client_id(escaped) == escaped
    assert bool(escaped) == bool(text)
