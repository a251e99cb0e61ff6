"""Follows the console's links, as a browser would, and compares each page with its link's text."""

from __future__ import annotations

import html
import re
from collections import Counter, deque
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

LINK = re.compile(r'\b(?:href|hx-get)="(/[^"]*)"')
OF_A_SHAPE_MAX = 6
"""Pages that differ by values alone, none of which has become 0 or was it."""

Get = Callable[[str], tuple[int, str]]
"""Status and text of a path."""


def crawl(get: Get) -> dict[str, str]:
    """Return every page that links lead to from the overview, by path. Fails at an answer that is an error, or that
    does not fit its link."""
    pending, seen, shapes = deque(["/"]), {"/"}, Counter[str]()
    pages: dict[str, str] = {}
    while pending:
        path = pending.popleft()
        status, text = get(path)
        assert status < 400, (path, status, text)
        check(path, text)
        pages[path] = text
        for found in LINK.findall(text):
            link = html.unescape(found).partition("#")[0]
            shapes[shape(link)] += link not in seen
            if link in seen or shapes[shape(link)] > OF_A_SHAPE_MAX:
                continue
            seen.add(link)
            pending.append(link)
    return pages


def parameters(link: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(link).query, keep_blank_values=True))


def shape(link: str) -> str:
    """A link without its values, but for 0: `/topics/*/messages?partition=0,start`."""
    path = re.sub(r"(?<=^/topics/)[^/]+", "*", urlsplit(link).path)
    named = sorted(name + ("=0" if value == "0" else "") for name, value in parameters(link).items())
    return f"{path}?{','.join(named)}"


def check(path: str, page: str) -> None:
    """Fails if the page is not of the partition, offset, group or transaction that its link names."""
    where, given = urlsplit(path).path, parameters(path)
    last = where.rpartition("/")[2]
    if where.startswith("/topics/"):
        if last in ("messages", "tail"):
            _check_records(path, given, rows_of(page))
        elif last == "message":
            assert f"Partition {given['partition']}, offset {given['offset']}<" in page, path
        elif last == "batches" and "offset" in given:
            first = rows_of(page)[0]
            assert int(first[0]) <= int(given["offset"]) <= int(first[1]), (path, first)
        if last in ("batches", "segments", "producers") and "partition" in given:
            assert f'name="partition" min="0" max="{partitions_of(page) - 1}" value="{given["partition"]}"' in page, (
                path
            )
    elif where in ("/group", "/transaction") and "<h1>" in page:
        assert f"<h1>{html.escape(given['id'])} " in page.replace("&#39;", "&#x27;").replace("&#34;", "&quot;") or (
            where == "/transaction"  # an application's name is not its id
        ), path


def _check_records(path: str, given: Mapping[str, str], rows: list[list[str]]) -> None:
    rows = [row for row in rows if len(row) > 2]
    if "partition" in given:
        assert {row[0] for row in rows} <= {given["partition"]}, path
    if given.get("start") == "offset" and "at" not in given:
        assert rows, path
        assert rows[-1][1] == given["value"], (path, rows[-1])
    for pair in given.get("at", "").split():
        partition, _, offset = pair.partition(":")
        offsets = [int(row[1]) for row in rows if row[0] == partition]
        is_older = given.get("dir") == "older"
        assert all(o < int(offset) if is_older else o >= int(offset) for o in offsets), path


def partitions_of(page: str) -> int:
    found = re.search(r"(\d+) partitions?</span>", page)
    assert found
    return int(found[1])


def rows_of(page: str) -> list[list[str]]:
    """The text of the cells of each line of the page's tables."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in rows]
    return [[html.unescape(re.sub(r"<[^>]+>", "", c)).strip() for c in row] for row in cells if row]


def names_in(pages: Mapping[str, str]) -> set[str]:
    """The kinds of pages that were reached, `/topics/*/messages` say."""
    return {unquote(shape(path).partition("?")[0]) for path in pages}
