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


IMPOSSIBLE = (
    "select id", "a b", "a\tb", "a\nb", "a\0b", "a\u00a0b", "a/b", "user@host", "*", "${HOST}", "'h'", "a..b", ".a", "x" * 64,
    ".".join(["x" * 60] * 5), "-a", "a-.b", "999.1.1.1", "1.2.3.4.5", "host.7000", "[zz]", "[1.2.3.4]", "[::1 ]", "[:::]",
)  # fmt: skip


@for_each("host", IMPOSSIBLE)
def test_a_host_that_no_look_up_can_find_is_refused_by_name(host: str) -> None:
    for text in (host, f"{host}:9292", f"good:1,{host}:9292"):
        with pytest.raises(InvalidConfigError, match="is no name of a host: ") as caught:
            parse_bootstrap(text)
        assert repr(host.strip("[]"))[:150] in str(caught.value)


def test_resolvable_hosts_are_accepted() -> None:
    for host in ("h_1.svc", "host.", "127.1", "10", "münchen.de", "mu\u0308nchen.de", "a-b.c", "x" * 63, "1a", "a.1b"):
        assert parse_bootstrap(f"{host}:1") == [Endpoint(host, 1)]
    assert parse_bootstrap("[fe80::1%eth0]") == [Endpoint("fe80::1%eth0", 9292)]
    with pytest.raises(InvalidConfigError, match="without http://"):
        parse_bootstrap("http://host:9292")


def test_explicit_then_environment_then_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARKLOG_BOOTSTRAP_SERVERS", raising=False)
    assert resolve_bootstrap(None) == "127.0.0.1:9292"
    monkeypatch.setenv("SPARKLOG_BOOTSTRAP_SERVERS", "env:1")
    assert resolve_bootstrap(None) == "env:1"
    assert resolve_bootstrap("given:2") == "given:2"
    assert resolve_bootstrap(["a:1", "[::1]:2"]) == "a:1,[::1]:2"
