"""Parser of the head of an HTTP request: only the parts that the three pages need.

A request has one line and headers, and no body: later bytes are not read. The server limits the size of the head and
the time until its end.
"""

from __future__ import annotations

from typing import NamedTuple

METHODS = ("GET", "HEAD")
HEADERS_MAX = 100


class Request(NamedTuple):
    """A parsed request. `path` is without the query; `host` is None without a `Host` header."""

    is_head: bool
    path: str
    accept: str
    host: str | None = None


class Refusal(Exception):  # noqa: N818  (an answer, not a failure)
    """The status and text that a request gets in place of a page."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def parse(head: bytes) -> Request:
    """Parse `head`, which ends with an empty line. Raises Refusal."""
    try:
        lines = head.decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        raise Refusal(400, "the request is not ASCII") from None
    parts = lines[0].split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.0", "HTTP/1.1") or not parts[1].startswith("/"):
        raise Refusal(400, "the request is not an HTTP/1.1 request for a path")
    if parts[0] not in METHODS:
        raise Refusal(405, "only GET and HEAD are allowed: the pages are read-only")
    if len(lines) > HEADERS_MAX:
        raise Refusal(431, f"more than {HEADERS_MAX} headers")
    hosts = _values(lines, "host")
    if len(hosts) > 1:
        raise Refusal(400, "more than one Host")
    host = hosts[0].strip() if hosts else None
    return Request(parts[0] == "HEAD", parts[1].partition("?")[0], ",".join(_values(lines, "accept")), host)


def _values(lines: list[str], name: str) -> list[str]:
    """Return the values of all headers with this name."""
    return [value for key, _, value in (line.partition(":") for line in lines[1:]) if key.strip().lower() == name]
