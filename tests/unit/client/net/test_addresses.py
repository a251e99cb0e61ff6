"""Bootstrap addresses."""

from __future__ import annotations

import pytest

from sparklog.client.net.addresses import Endpoint, parse_bootstrap, resolve_bootstrap
from sparklog.errors import InvalidConfigError
from tests.support.cases import for_each


@pytest.mark.parametrize(
    ("text", "endpoints"),
    [
        ("a:1", [("a", 1)]),
        ("a:1, b:2", [("a", 1), ("b", 2)]),
        ("a", [("a", 9292)]),
        ("[::1]:5", [("::1", 5)]),
        ("[::1]", [("::1", 9292)]),
        ("a:1,", [("a", 1)]),
    ],
)
def test_parses(text: str, endpoints: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == [Endpoint(*e) for e in endpoints]


@for_each("text", [",", "a:", ":1", "a:x", "a:0", "a:65536", "::1:5", "[::1", "[::1]x", "[]:1", "a:-1"])
def test_refuses(text: str) -> None:
    with pytest.raises(InvalidConfigError):
        parse_bootstrap(text)


def test_explicit_then_environment_then_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_bootstrap(None) == "127.0.0.1:9292"
    monkeypatch.setenv("SPARKLOG_BOOTSTRAP_SERVERS", "env:1")
    assert resolve_bootstrap(None) == "env:1"
    assert resolve_bootstrap("given:2") == "given:2"
    assert resolve_bootstrap(["a:1", "[::1]:2"]) == "a:1,[::1]:2"
