"""Every API has a handler, and a defect in one is answered, not propagated."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sparklog_broker.network.connection import Connection
from sparklog_broker.network.gateway_claim import GatewayClaim
from sparklog_broker.network.reply import Reply
from sparklog_broker.pipeline import Pipeline
from sparklog_broker.registry import HANDLERS

from sparklog.errors import ERRORS, InvalidRequestError, StorageError, UnknownServerError
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.codec import decode_error, encode
from sparklog.protocol.frames import RequestPrefix, decode_response_prefix
from sparklog.protocol.messages import HandshakeRequest
from sparklog.protocol.permission_rules import Denial
from tests.support.requests import Asking


def answer(handler: Any, header: bytes | None = None) -> Reply:
    body = bytearray(encode(HandshakeRequest()) if header is None else header)
    prefix = RequestPrefix(Api.HANDSHAKE, 0, 7, len(body), len(body))
    pipeline = Pipeline(
        cast(Any, SimpleNamespace(cluster=None)), {Api.HANDSHAKE: handler}, gateways=GatewayClaim(lambda: 0.0)
    )
    reply = asyncio.run(pipeline.answer(prefix, memoryview(body), cast(Connection, Asking())))
    assert reply is not None
    return reply


def test_every_api_has_a_handler_of_its_own() -> None:
    assert set(HANDLERS) | {Api.FORWARD} == set(Api) == set(APIS), "the pipeline answers FORWARD with the handlers"
    assert len(set(HANDLERS.values())) == len(HANDLERS)
    for handler in HANDLERS.values():
        assert inspect.iscoroutinefunction(handler)


def test_forwarded_requests_have_no_results_per_item() -> None:
    """A part of the request that the principal may not do would have to be taken out of its bytes."""
    for api, spec in APIS.items():
        if spec.is_at_controller:
            assert all(rule.denial is Denial.REQUEST for rule in spec.permissions), api


@pytest.mark.parametrize(
    ("raised", "told", "closes"),
    [
        (StorageError("no"), StorageError, False),
        (InvalidRequestError("no"), InvalidRequestError, True),
        (KeyError("secret"), UnknownServerError, False),
    ],
)
def test_errors_become_frames(
    raised: Exception, told: type[Exception], closes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(*_: Any) -> Any:
        raise raised

    reply = answer(handler)
    (frame,) = cast(list[bytes], reply.parts)
    prefix = decode_response_prefix(frame, 1 << 20)
    assert (ERRORS[prefix.error_code], prefix.correlation_id, reply.close) == (told, 7, closes)
    assert "secret" not in decode_error(frame[16:])
    assert ("Traceback" in caplog.text) == (told is UnknownServerError)


def test_a_header_that_cannot_be_read_closes() -> None:
    async def handler(*_: Any) -> Any:
        raise AssertionError("must not be called")

    assert answer(handler, b"\xc1").close


def test_an_error_is_reported_in_one_line() -> None:
    async def handler(*_: Any) -> Any:
        raise StorageError("topic 'a\n2026 ERROR forged\x1b[2J': no")

    (frame,) = cast(list[bytes], answer(handler).parts)
    assert decode_error(frame[16:]) == r"topic 'a\n2026 ERROR forged\x1b[2J': no"
