"""The broker's side of its Kafka gateway: settings, addresses, and the preamble of a connection."""

from __future__ import annotations

import asyncio
import os
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sparklog_broker.children import kafka_gateway
from sparklog_broker.children.kafka_gateway import KafkaGateway
from sparklog_broker.config import make_config
from sparklog_broker.handlers.metadata import registries_of
from sparklog_broker.network import preamble
from sparklog_broker.network.listening import ListenError
from sparklog_broker.network.preamble import read_preamble

from sparklog.errors import InvalidConfigError, InvalidRequestError, SparklogError
from sparklog.protocol.gateway import LENGTH, OnBehalf, decode_start, encode_preamble
from sparklog.security.listeners import endpoint_for, parse_listeners, registered_endpoints

CLIENT = OnBehalf("10.1.2.3", 5000, "10.0.0.1", 9092, b"certificate")
REGISTRY = {"schema.registry.listeners": "http://127.0.0.1:0"}


def test_metadata_name_the_registries_of_all_gateways_and_none_outside() -> None:
    def registries(own: tuple[str, ...], *endpoints: tuple[str, ...], outside: str = "") -> list[str]:
        brokers = {i: SimpleNamespace(endpoints=one) for i, one in enumerate(endpoints)}
        image, config = SimpleNamespace(brokers=brokers), SimpleNamespace(schema_registry_url=outside)
        broker = SimpleNamespace(config=config, cluster=SimpleNamespace(image=image), registries=own)
        return registries_of(cast(Any, broker))

    both = ("a:1", "INNER://a:1", "kafka.http://a:81", "kafka.https://a:82")
    assert registries(("http://127.0.0.1:1",), both, ("b:1",), ("c:1", "X://c:1", "kafka.https://c:82")) == [
        "https://a:82", "https://c:82", "http://a:81"
    ]  # fmt: skip
    assert registries(("http://:81", "https://:82"), ("a:1",)) == ["https://:82", "http://:81"]
    assert registries(("http://:81",), outside="http://other:8081") == []
    kafka = parse_listeners("http://127.0.0.1:0,https://0.0.0.0:0", "http:PLAINTEXT,https:SSL")
    config = make_config(REGISTRY)
    gateway = KafkaGateway(kafka, config.security)
    try:
        (one, port), (other, _) = (url.rsplit(":", 1) for url in gateway.registries)
        assert (one, other) == ("http://127.0.0.1", "https://") and int(port) > 0
    finally:
        gateway.close()


def test_settings_are_checked_at_the_start() -> None:
    for given, said in (
        ({"kafka.listeners": "9092"}, "kafka.listeners"),
        ({"kafka.listeners": "OTHER://127.0.0.1:1"}, "OTHER"),
        ({"kafka.listeners": "SASL_PLAINTEXT://127.0.0.1:1", "sasl.enabled.mechanisms": "PLAIN"}, "PLAIN"),
        ({"kafka.advertised.listeners": "PLAINTEXT://a:1"}, "kafka.listeners is not"),
        ({"kafka.listeners": "PLAINTEXT://127.0.0.1:1", "kafka.advertised.listeners": "X://a:1"}, "X"),
        ({"schema.registry.listeners": "127.0.0.1:8081"}, "schema.registry.listeners"),
        ({"schema.registry.listeners": "ftp://127.0.0.1:1"}, "schema.registry.listeners"),
        ({"schema.registry.listeners": "http://127.0.0.1:1", "listener.security.protocol.map": "http:SSL"}, "http"),
        ({"kafka.listeners": "http://a:1", "listener.security.protocol.map": "http:PLAINTEXT"} | REGISTRY, "http"),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:1", "schema.registry.listeners": "http://:1"}, "passwords"),
    ):
        with pytest.raises(InvalidConfigError, match=said):
            make_config(given)
    exposed = make_config({"kafka.listeners": "PLAINTEXT://0.0.0.0:9092"})
    with pytest.raises(InvalidConfigError, match="can be reached from other hosts"):
        exposed.warnings()


def test_the_registry_authenticates_if_a_listener_of_the_broker_does() -> None:
    for settings, protocol in (
        (REGISTRY, "PLAINTEXT"),
        (REGISTRY | {"listeners": "SASL_PLAINTEXT://127.0.0.1:1"}, "SASL_PLAINTEXT"),
        (REGISTRY | {"kafka.listeners": "SASL_PLAINTEXT://127.0.0.1:1"}, "SASL_PLAINTEXT"),
        (REGISTRY | {"listener.security.protocol.map": "http:SASL_PLAINTEXT"}, "SASL_PLAINTEXT"),
        ({"schema.registry.listeners": "https://127.0.0.1:1"}, "SSL"),
    ):
        assert make_config(settings).security.gateways[-1].protocol == protocol


def test_the_gateway_gets_its_sockets_and_the_settings_of_tls() -> None:
    config = make_config(
        {
            "kafka.listeners": "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
            "listener.name.ssl.ssl.keystore.location": "/own.pem",
            "ssl.key.password": "${env:HOME}",
        }
    )
    gateway = KafkaGateway.from_config(config)
    assert gateway is not None
    try:
        spec = gateway.spec()
        settings, *bound = spec.descriptors
        start = decode_start(os.pread(settings, 100_000, 0))
        assert [one.descriptor for one in start.listeners] == bound
        assert [one.name for one in start.listeners] == ["SSL", "PLAINTEXT"]
        assert start.listeners[0].tls["ssl.keystore.location"] == "/own.pem"
        assert start.listeners[0].tls["ssl.key.password"] == os.environ["HOME"]
        assert start.listeners[1].tls == {}
        assert [line.partition("://")[0] for line in gateway.addresses] == ["kafka.SSL", "kafka.PLAINTEXT"]
        assert str(start.listeners[0].port) in gateway.addresses[0]
        assert not any("HOME" in part or os.environ["HOME"] in part for part in spec.command[3:])
    finally:
        gateway.close()
        gateway.close()


def test_a_port_is_awaited_that_the_gateway_of_a_killed_broker_still_has(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as former:
        config = make_config({"kafka.listeners": f"PLAINTEXT://127.0.0.1:{former.getsockname()[1]}"})
        with monkeypatch.context() as patched:
            patched.setattr(kafka_gateway, "TAKEN_WAIT_S", 0.0)
            with pytest.raises(ListenError, match="the port is in use"):
                KafkaGateway.from_config(config)
        monkeypatch.setattr("time.sleep", lambda _: former.close())
        gateway = KafkaGateway.from_config(config)
        assert gateway is not None
        gateway.close()


def test_addresses_for_other_hosts() -> None:
    for given, expected in (
        ({}, ("127.0.0.1", 0)),
        ({"kafka.listeners": "PLAINTEXT://:0", "advertised.listeners": "broker:1"}, ("broker", 0)),
        ({"kafka.advertised.listeners": "PLAINTEXT://outside:99"}, ("outside", 99)),
    ):
        gateway = KafkaGateway.from_config(make_config({"kafka.listeners": "PLAINTEXT://127.0.0.1:0"} | given))
        assert gateway is not None
        found = gateway.endpoints({"PLAINTEXT": ("127.0.0.1", 9292)})["kafka.PLAINTEXT"]
        gateway.close()
        assert found[0] == expected[0] and (not expected[1] or found[1] == expected[1])


def test_each_protocols_clients_get_their_own_addresses() -> None:
    listeners = parse_listeners("PLAINTEXT://10.0.0.1:9292")
    own = {"PLAINTEXT": ("10.0.0.1", 9292)}
    both = registered_endpoints(listeners, own, explicit=False, gateways={"kafka.PLAINTEXT": ("10.0.0.1", 9092)})
    assert endpoint_for(both) == endpoint_for(both, "PLAINTEXT") == "10.0.0.1:9292"
    assert endpoint_for(both, "kafka.PLAINTEXT") == "10.0.0.1:9092"
    alone = registered_endpoints(listeners, own, explicit=False)
    assert endpoint_for(alone, "PLAINTEXT") == "10.0.0.1:9292"
    assert endpoint_for(alone, "kafka.PLAINTEXT") == "", "a broker without a gateway tells Kafka's clients nothing"


def read(data: bytes) -> OnBehalf:
    async def main() -> OnBehalf:
        here, there = socket.socketpair()
        here.setblocking(False)
        try:
            there.sendall(data)
            there.shutdown(socket.SHUT_WR)
            return await read_preamble(asyncio.get_running_loop(), here)
        finally:
            here.close()
            there.close()

    return asyncio.run(main())


def test_a_preamble_names_the_client() -> None:
    assert read(encode_preamble(CLIENT) + b"requests follow") == CLIENT


@pytest.mark.parametrize(
    "data",
    [b"", b"\x01", LENGTH.pack(1 << 20), LENGTH.pack(5) + b"\xff\xff", LENGTH.pack(1) + b"\xc0", LENGTH.pack(0)],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        read(data)


def test_processes_of_other_users_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="process belongs to user"):
        read(encode_preamble(CLIENT))


def test_a_silent_process_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preamble, "TIMEOUT_S", 0.05)

    async def main() -> Any:
        here, there = socket.socketpair()
        here.setblocking(False)
        try:
            return await read_preamble(asyncio.get_running_loop(), here)
        finally:
            here.close()
            there.close()

    with pytest.raises((TimeoutError, SparklogError)):
        asyncio.run(main())
