"""Client ids: short and printable, at the client and at the broker."""

from __future__ import annotations

import pytest
from sparklog_broker.pipeline import client_id_of

from sparklog import Admin, Consumer, Producer
from sparklog.errors import InvalidConfigError, InvalidRequestError
from sparklog.protocol.messages import HandshakeRequest
from sparklog.security.client_ids import CLIENT_ID_CHARS_MAX, check_client_id, printable_client_id
from tests.support.cases import for_each

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
