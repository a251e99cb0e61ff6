"""Listeners: the meaning of the settings, and the protection against an open broker by accident."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import InvalidConfigError
from sparklog.security.listeners import (
    Listener,
    SecurityProtocol,
    check_exposure,
    is_local,
    listener_settings,
    parse_listeners,
)
from tests.support.cases import for_each

MAP = "INTERNAL:SSL,CLIENTS:SASL_SSL"


def test_an_address_that_no_client_can_find_is_refused() -> None:
    for host in ("${HOST}", "999.1.1.1", "-a", "a..b"):
        with pytest.raises(InvalidConfigError, match=f"{re.escape(repr(host))} is no name of a host"):
            parse_listeners("PLAINTEXT://127.0.0.1:9292", "", f"PLAINTEXT://{host}:9292")


def test_several_listeners() -> None:
    listeners = parse_listeners(
        "INTERNAL://10.0.0.1:9291, CLIENTS://:9292,PLAINTEXT://[::1]:0",
        MAP,
        "CLIENTS://kafka.example.com:19292,INTERNAL://10.0.0.1:9291",
        "INTERNAL",
    )
    assert listeners.bound == (
        Listener("INTERNAL", "10.0.0.1", 9291, SecurityProtocol.SSL),
        Listener("CLIENTS", "", 9292, SecurityProtocol.SASL_SSL),
        Listener("PLAINTEXT", "::1", 0, SecurityProtocol.PLAINTEXT),
    )
    assert [str(a) for a in listeners.advertised] == [
        "CLIENTS://kafka.example.com:19292",
        "INTERNAL://10.0.0.1:9291",
    ]
    assert listeners.inter_broker.name == "INTERNAL"
    assert str(listeners.bound[2]) == "PLAINTEXT://[::1]:0"


def test_defaults_of_listeners() -> None:
    listeners = parse_listeners("SASL_SSL://0.0.0.0:9292,SSL://127.0.0.1:1", own_host="broker-1")
    assert [str(a) for a in listeners.advertised] == ["SASL_SSL://broker-1:9292", "SSL://127.0.0.1:1"]
    assert listeners.inter_broker == listeners.bound[0]


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (("",), "at least one"),
        (("127.0.0.1:9292",), "NAME://HOST:PORT"),
        (("PLAINTEXT://a:b:1",), "NAME://HOST:PORT"),
        (("PLAINTEXT://a",), "NAME://HOST:PORT"),
        (("PLAINTEXT://a:65536",), "NAME://HOST:PORT"),
        (("PLAINTEXT://[x]:1",), "IPv6"),
        (("CLIENTS://a:1",), "has no protocol for"),
        (("PLAINTEXT://a:1,PLAINTEXT://b:2",), "twice"),
        (("CLIENTS://a:1,clients://b:2", "CLIENTS:SSL,clients:SSL"), "case"),
        (("PLAINTEXT://a:1,SSL://a:1",), "address occurs twice"),
        (("CLIENTS://a:1", "CLIENTS:TLS"), "PROTOCOL"),
        (("CLIENTS://a:1", "CLIENTS"), "PROTOCOL"),
        (("SSL://a:1", "SSL:PLAINTEXT"), "can only be"),
        (("SSL://a:1", "", "PLAINTEXT://a:1"), "not one of the listeners"),
        (("SSL://a:1", "", "SSL://0.0.0.0:1"), "no client can connect"),
        (("SSL://a:1", "", "SSL://:1"), "no client can connect"),
        (("SSL://a:1", "", "SSL://a:1,SSL://b:2"), "twice"),
        (("SSL://a:1", "", "", "OTHER"), "inter.broker.listener.name"),
        ((",".join(f"PLAINTEXT://a:{n}" for n in range(1, 102)),), "at most"),
    ],
)
def test_settings_that_are_refused(settings: tuple[str, ...], part: str) -> None:
    with pytest.raises(InvalidConfigError) as e:
        parse_listeners(*settings)
    assert part in str(e.value)


@given(st.text("PLAINTEXT:/[]0.a,19 ", max_size=40))
def test_only_config_errors_are_raised(text: str) -> None:
    try:
        parse_listeners(text)
    except InvalidConfigError:
        return


def exposure(listeners: str, client_auth: str = "none", allow: bool = False) -> tuple[str, ...]:
    return check_exposure(parse_listeners(listeners), lambda listener: client_auth, allow)


@for_each("host", ["127.0.0.1", "127.8.0.1", "[::1]", "localhost"])
def test_this_host_alone_may_be_without_authentication(host: str) -> None:
    assert exposure(f"PLAINTEXT://{host}:1,SSL://{host}:2") == ()


@for_each("host", ["", "0.0.0.0", "[::]", "[::0]", "10.0.0.1", "localhost.example.com", "broker", "0"])
def test_other_hosts_need_authentication_or_a_decision(host: str) -> None:
    for listener in (f"PLAINTEXT://{host}:1", f"SSL://{host}:1"):
        with pytest.raises(InvalidConfigError, match=r"allow\.insecure"):
            exposure(listener)
        (warning,) = exposure(listener, allow=True)
        assert "every client" in warning
    assert exposure(f"SSL://{host}:1", "required") == ()
    with pytest.raises(InvalidConfigError):
        exposure(f"SSL://{host}:1", "requested")
    assert exposure(f"SASL_SSL://{host}:1") == ()
    assert "does not encrypt" in exposure(f"SASL_PLAINTEXT://{host}:1")[0]


def test_no_name_is_local() -> None:
    assert not is_local("")
    assert not is_local("LOCALHOST.evil.example")


def test_settings_of_one_listener() -> None:
    settings = {"a": 1, "b": 2, "listener.name.clients.a": 3, "listener.name.internal.b": 4}
    assert listener_settings(settings, "CLIENTS") == {"a": 3, "b": 2}
    assert listener_settings(settings, "INTERNAL") == {"a": 1, "b": 4}
