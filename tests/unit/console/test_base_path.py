"""The console's paths behind a reverse proxy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

import sparklog.console
from sparklog.console.base_path import BasePath, base_path_of, check_base_path, with_base_path
from sparklog.console.pages.login import own_path
from sparklog.errors import InvalidConfigError
from tests.support.cases import for_each

TEMPLATES = Path(sparklog.console.__file__).parent / "templates"


@for_each("text, path", [("", ""), ("/", ""), ("/sparklog", "/sparklog"), ("/a/b.c/", "/a/b.c"), (" /a ", "/a")])
def test_a_path_has_no_slash_at_its_end(text: str, path: str) -> None:
    assert check_base_path(text, "--base-path") == path


@for_each(
    "text", ["sparklog", "//evil.example", "/a//b", "/a b", '/a"', "/..", "/a/../b", "/" + "x" * 201, "/a\n", "/ä"]
)
def test_a_path_that_could_leave_the_site_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="--base-path = "):
        check_base_path(text + "/", "--base-path")


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(f"{base_path_of(Request(scope))}|{scope['path']}")(scope, receive, send)


@for_each(
    "given, path, forwarded, seen",
    [
        ("", "/topics", None, "|/topics"),
        ("/s", "/s/topics", None, "/s|/topics"),
        ("/s", "/topics", None, "/s|/topics"),  # the proxy has taken it off
        ("/s", "/s", None, "/s|/"),
        ("/s", "/sql", None, "/s|/sql"),
        ("/s", "/s/topics/", None, "/s|/topics"),
        ("", "/topics", "/t/u/", "/t/u|/topics"),
        ("/s", "/s/topics", "/t", "/s|/topics"),
    ],
)
def test_the_path_of_the_proxy_is_taken_off(given: str, path: str, forwarded: str | None, seen: str) -> None:
    headers = {} if forwarded is None else {"X-Forwarded-Prefix": forwarded}
    assert TestClient(BasePath(_echo, given)).get(path, headers=headers).text == seen


def test_a_forwarded_path_is_checked() -> None:
    answer = TestClient(BasePath(_echo)).get("/", headers={"X-Forwarded-Prefix": "//evil.example"})
    assert (answer.status_code, "X-Forwarded-Prefix = '//evil.example'" in answer.text) == (400, True)


def test_links_get_the_path_and_values_do_not() -> None:
    page = '<a href="/topics">a</a><form method="get" action="/x"><p hx-get="/y">text href=&#34;/no&#34;</p>'
    assert with_base_path(page, "/s") == page.replace('="/', '="/s/')
    assert with_base_path(page, "") == page
    assert with_base_path('<a href="//other">', "/s") == '<a href="//other">'


def test_every_address_in_a_template_is_one_that_gets_the_path() -> None:
    known = re.compile(r"\s(href|src|action|hx-get|hx-post)=$")
    for template in TEMPLATES.glob("*.html"):
        text = template.read_text()
        for found in re.finditer(r"""=["'](?=/|\{\{ url\()""", text):
            before = text[: found.start() + 1]
            is_set = before.rstrip("=").rpartition("{%")[2].lstrip().startswith(("set ", "for "))
            assert known.search(before) or is_set, (template.name, text[found.start() - 20 : found.end() + 20])


@for_each("text", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:x", "", "/a\r\nb"])
def test_a_login_leads_to_no_other_site(text: str) -> None:
    assert own_path(text) == "/"
    assert own_path("/topics?q=a") == "/topics?q=a"
