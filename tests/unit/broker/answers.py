"""Answers as peers see them."""

from __future__ import annotations

from typing import TypeVar

from sparklog_broker.network.reply import Response, rest_of

from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.codec import decode_response, encode

M = TypeVar("M", bound=Message)


def sent(api: Api, response: Response, response_type: type[M]) -> M:
    """The message that a peer decodes."""
    assert response.message is not None
    pieces = None if response.header is None else [*response.header, rest_of(response.message)]
    header = encode(response.message) if pieces is None else b"".join(pieces)
    return decode_response(api, header, response_type)
