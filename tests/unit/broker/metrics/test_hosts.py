"""Under which names the metrics pages are asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sparklog_broker.config import make_config
from sparklog_broker.metrics.hosts import allowed_names, is_allowed
from sparklog_broker.metrics.http_request import Refusal, parse
from sparklog_broker.metrics.service import MetricsService

from sparklog.environment import real_environment

SETTINGS = {
    "metrics.listen": "metrics.lan:9293",
    "listeners": "IN://in.lan:1,OUT://127.0.0.1:2",
    "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT",
    "inter.broker.listener.name": "IN",
    "advertised.listeners": "IN://Broker-1.lan:1,OUT://broker.example:2",
    "allow.insecure": True,
}
OURS = ["metrics.lan", "in.lan", "broker-1.LAN:9293", "broker.example.", "localhost:9293", "LOCALHOST"]
ADDRESSES = ["127.0.0.1:9293", "10.1.2.3", "[::1]:9293", "[2001:db8::1]"]
THEIRS = [
    "evil.example",
    "evil.example:9293",
    "",
    "localhost.evil.example",
    "10.1.2.3.evil.example",
    "[evil]:9293",
    "*",
]


def names(tmp_path: Path, **more: object) -> frozenset[str]:
    return allowed_names(make_config({"data.dir": str(tmp_path), **SETTINGS, **more}))


@pytest.mark.parametrize("host", [*OURS, *ADDRESSES, None])
def test_ours_and_addresses_are_answered(host: str | None, tmp_path: Path) -> None:
    assert is_allowed(host, names(tmp_path))


@pytest.mark.parametrize("host", THEIRS)
def test_other_names_are_not(host: str, tmp_path: Path) -> None:
    assert not is_allowed(host, names(tmp_path))
    assert is_allowed(host, names(tmp_path, **{"metrics.allowed.hosts": "*"}))


def test_names_can_be_added(tmp_path: Path) -> None:
    found = names(tmp_path, **{"metrics.allowed.hosts": "one.lan, Two.lan"})
    assert is_allowed("one.lan:9293", found)
    assert is_allowed("two.lan", found)
    assert not is_allowed("three.lan", found)


@pytest.mark.parametrize("path", ["/metrics", "/health/ready", "/health/live", "/other"])
def test_a_page_is_refused_under_another_name(path: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        config = make_config({"data.dir": str(tmp_path), "metrics.listen": "127.0.0.1:0"})
        service = MetricsService(config, asyncio.get_running_loop(), real_environment())
        with pytest.raises(Refusal, match=r"metrics\.allowed\.hosts") as refused:
            await service.page(parse(f"GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n".encode()))
        assert refused.value.status == 421
        await service.stop()

    asyncio.run(scenario())
