"""The schema registry of a console: its address, the names of its subjects, and clients for the requests of pages."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from sparklog.client.net.registry_address import registry_url
from sparklog.client.net.registry_client import RegistryClient
from sparklog.client.net.registry_subjects import RegistrySubjects
from sparklog.console.watching import DUTY, NAMES_AGE_S
from sparklog.environment.clock import MachineClock
from sparklog.errors import BrokerNotAvailableError
from sparklog.security.client_security import ClientSecurity

REQUEST_S = 5.0
"""Longest time for one request."""
PAGE_S = 10.0
"""Time after which a page begins no further request; it shows the values that it has."""
ABSENT_AGE_S = 10.0
"""Time for which the brokers are not asked again for a registry that they do not have."""


class NoRegistryError(Exception):
    """The console has no address of a schema registry."""


class RegistryAccess:
    """Access to the schema registry as the console's user. Thread-safe."""

    def __init__(
        self, bootstrap_servers: str, security: ClientSecurity | None, url: str, timeout_ms: int, clock: MachineClock
    ) -> None:
        """`url`: address of the registry; "": the brokers name it. `timeout_ms`: longest time to ask the brokers."""
        self._bootstrap_servers = bootstrap_servers
        self._security = security
        self._configured_url = url
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._lock = threading.Lock()
        self._url = url
        self._absent_until_s = float("-inf")
        self._names_lock = threading.Lock()
        self._names: Sequence[str] = ()
        self._names_until_s = float("-inf")

    @property
    def url(self) -> str:
        """The registry's address; "" before it is known."""
        return self._url

    @contextmanager
    def open(self) -> Iterator[RegistrySubjects]:
        """Yield the subjects of the registry, for one page. Raises NoRegistryError, SparklogError."""
        with closing(RegistryClient(self._find_url(), self._security, timeout_s=REQUEST_S, idle_max=1)) as client:
            try:
                yield RegistrySubjects(client)
            except BrokerNotAvailableError:
                with self._lock:
                    self._url = self._configured_url  # the brokers can have another registry by now
                raise

    def names(self, registry: RegistrySubjects) -> Sequence[str]:
        """Return the sorted names of all subjects. They are cached, as those of topics are. Simultaneous calls wait for
        one request."""
        with self._names_lock:
            begun_s = self._clock.monotonic_s()
            if begun_s >= self._names_until_s:
                self._names = registry.names()
                ended_s = self._clock.monotonic_s()
                self._names_until_s = ended_s + max(NAMES_AGE_S, DUTY * (ended_s - begun_s))
            return self._names

    def _find_url(self) -> str:
        """Return the address of the registry, from the brokers if none is given. Raises NoRegistryError,
        SparklogError."""
        with self._lock:
            if not self._url:
                if self._clock.monotonic_s() < self._absent_until_s:
                    raise NoRegistryError
                self._url = registry_url(self._bootstrap_servers, self._security, timeout_ms=self._timeout_ms)
                if not self._url:
                    self._absent_until_s = self._clock.monotonic_s() + ABSENT_AGE_S
                    raise NoRegistryError
            return self._url
