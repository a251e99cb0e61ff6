"""A schema registry outside of the cluster (`schema.registry.url`)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from sparklog.client.net.registry_reader import RegistryAnswer, RegistryReader
from sparklog.gateway.backend.connection import BrokerConnection


class OutsideRegistry:
    """Reads schemas. Event-loop thread only; requests are sent on a thread, one at a time."""

    def __init__(self, url: str) -> None:
        """`url`: http:// or https:// with host and port."""
        self._reader = RegistryReader(url)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="schema-registry")

    async def read(
        self,
        broker: BrokerConnection,
        ids: Collection[int],
        subjects: Iterable[str],
        kept: Collection[int],
        guids: Collection[UUID] = (),
    ) -> RegistryAnswer:
        """Return schemas by their ids and GUIDs, and the newest ids of subjects. `kept`: ids that are in memory. Raises
        BrokerNotAvailableError if the registry does not answer."""
        loop = asyncio.get_running_loop()
        read = self._reader.read
        return await loop.run_in_executor(self._thread, read, frozenset(ids), list(subjects), frozenset(kept), guids)

    def close(self) -> None:
        """Stop the thread after its present request."""
        self._thread.shutdown(wait=False, cancel_futures=True)
