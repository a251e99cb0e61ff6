"""Heads of HTTP requests: the accepted ones, and the harmlessness of all others."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparklog_broker.metrics.exposition import Exposition, accepted_by
from sparklog_broker.metrics.http_request import HEADERS_MAX, Refusal, Request, parse


@pytest.mark.parametrize(
    ("head", "request_"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Request(False, "/metrics", "", "x")),
        (b"GET /metrics HTTP/1.1\r\nhOST :[::1]:9 \r\n\r\n", Request(False, "/metrics", "", "[::1]:9")),
        (b"HEAD /health/live HTTP/1.0\r\n\r\n", Request(True, "/health/live", "")),
        (b"GET /metrics?name[]=up&x=%00 HTTP/1.1\r\n\r\n", Request(False, "/metrics", "")),
        (b"GET / HTTP/1.1\r\naccept: a\r\nAccept:b;q=1\r\n\r\n", Request(False, "/", " a,b;q=1")),
        (b"GET //x/../y HTTP/1.1\r\nno colon\r\n\r\n", Request(False, "//x/../y", "")),
    ],
)
def test_taken(head: bytes, request_: Request) -> None:
    assert parse(head) == request_


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/2\r\n\r\n", 400),
        (b"GET http://evil/metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"get /metrics HTTP/1.1\r\n\r\n", 405),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * HEADERS_MAX + b"\r\n", 431),
    ],
)
def test_refused(head: bytes, status: int) -> None:
    with pytest.raises(Refusal) as refused:
        parse(head)
    assert refused.value.status == status


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_refused(head: bytes) -> None:
    with contextlib.suppress(Refusal):
        parse(head + b"\r\n\r\n")
    with contextlib.suppress(Refusal):
        parse(b"GET /metrics HTTP/1.1\r\n" + head + b"\r\n\r\n")


@pytest.mark.parametrize(
    ("accept", "exposition"),
    [
        ("", Exposition.TEXT),
        ("text/html,*/*;q=0.8", Exposition.TEXT),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3", Exposition.OPENMETRICS),
        ("text/plain, Application/OpenMetrics-Text; version=nonsense; escaping=%0d%0a", Exposition.OPENMETRICS),
        ("x-application/openmetrics-text", Exposition.TEXT),
    ],
)
def test_the_requested_form(accept: str, exposition: Exposition) -> None:
    assert accepted_by(accept) is exposition
