"""The console's access to a schema registry: its address, and the cache of the names."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sparklog.console import registry as module
from sparklog.console.registry import ABSENT_AGE_S, NoRegistryError, RegistryAccess
from sparklog.errors import BrokerNotAvailableError


class SetClock:
    """A clock that shows a set time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


class Brokers:
    """Brokers that name a registry."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests = 0

    def registry_url(self, *arguments: object, **more: object) -> str:
        self.requests += 1
        return self.url


def access_of(brokers: Brokers, clock: SetClock, monkeypatch: pytest.MonkeyPatch, url: str = "") -> RegistryAccess:
    monkeypatch.setattr(module, "registry_url", brokers.registry_url)
    return RegistryAccess("b:1", None, url, 1_000, cast(Any, clock))


def test_the_brokers_name_the_registry_once_and_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers("http://127.0.0.1:81")
    access = access_of(brokers, SetClock(), monkeypatch)
    for _ in range(2):
        with access.open():
            assert access.url == "http://127.0.0.1:81"
    assert brokers.requests == 1
    with pytest.raises(BrokerNotAvailableError), access.open():
        raise BrokerNotAvailableError("gone")
    brokers.url = "http://127.0.0.1:82"
    with access.open():
        assert (access.url, brokers.requests) == ("http://127.0.0.1:82", 2)


def test_brokers_without_a_registry_get_another_request_later(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers, clock = Brokers(""), SetClock()
    access = access_of(brokers, clock, monkeypatch)
    for _ in range(3):
        with pytest.raises(NoRegistryError), access.open():
            pass
    assert brokers.requests == 1
    clock.now_s, brokers.url = ABSENT_AGE_S, "http://127.0.0.1:81"
    with access.open():
        assert brokers.requests == 2


def test_a_configured_address_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers("http://127.0.0.1:81")
    access = access_of(brokers, SetClock(), monkeypatch, "https://registry:8081")
    with pytest.raises(BrokerNotAvailableError), access.open():
        raise BrokerNotAvailableError("gone")
    assert (access.url, brokers.requests) == ("https://registry:8081", 0)


def test_names_are_kept_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    class Subjects:
        requests = 0

        def names(self) -> list[str]:
            self.requests += 1
            return ["a"]

    clock, subjects = SetClock(), Subjects()
    access = access_of(Brokers(""), clock, monkeypatch)
    for now_s, requests in ((0.0, 1), (1.0, 1), (2.0, 2)):
        clock.now_s = now_s
        assert access.names(cast(Any, subjects)) == ["a"]
        assert subjects.requests == requests
