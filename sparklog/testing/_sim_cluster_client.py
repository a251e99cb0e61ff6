"""A client of a cluster: like `SimClient`, but each request goes to the leader of the partition, or the coordinator of
the group or transaction, as far as the client knows. The client learns from the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from sparklog.errors import (
    BrokerNotAvailableError,
    CoordinatorNotAvailableError,
    FencedLeaderEpochError,
    LeaderNotAvailableError,
    NotCoordinatorError,
    NotEnoughReplicasAfterAppendError,
    NotLeaderError,
    SparklogError,
    UnknownTopicOrPartitionError,
    error_from_code,
)
from sparklog.protocol import group_messages as g
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse
from sparklog.testing._sim_client import BACKOFF_S, BACKOFF_S_MAX, REQUEST_TIMEOUT_S, SimClient
from sparklog.testing._sim_loop import SimLoop
from sparklog.testing._sim_net import SimNet
from sparklog.types import FENCING_TOKENS_ID, TopicPartition, shared_transactional_id

R = TypeVar("R", bound=Message)

LOOK_UP_TIMEOUT_S = 1.0
OF_PARTITIONS = frozenset({Api.PRODUCE, Api.FETCH, Api.LIST_OFFSETS, Api.DELETE_RECORDS})
WHOLE = frozenset({Api.LIST_OFFSETS, Api.OFFSET_FETCH})
"""APIs that are repeated while a part of the answer is a retriable error."""
MISPLACED = (
    NotLeaderError.code,
    FencedLeaderEpochError.code,
    LeaderNotAvailableError.code,
    NotEnoughReplicasAfterAppendError.code,
)
UNKNOWN = UnknownTopicOrPartitionError.code
GROUP, TRANSACTION = 0, 1


class ClusterClient:
    """The client; belongs to the process of `loop`. `hosts`: the bootstrap brokers."""

    def __init__(self, loop: SimLoop, net: SimNet, host: str, hosts: Sequence[str]) -> None:
        self.loop = loop
        self.net = net
        self._host = host
        self.hosts = self._hosts = list(hosts)
        self._turn = 0
        self._connections: dict[str, SimClient] = {}
        self._leaders: dict[TopicPartition, tuple[int, str]] = {}
        """Leader epoch and host; the epoch stays after the host is forgotten."""
        self._coordinators: dict[tuple[int, str], str] = {}
        self._looking: asyncio.Task[None] | None = None
        self.requests_begun = 0
        """Number of requests that were sent; repetitions count."""
        self.requests_ended = 0
        """Number of these requests that have an answer or have failed."""

    # --- as SimClient

    async def ask(
        self,
        api: Api,
        request: Message,
        response: type[R],
        payload: bytes = b"",
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> tuple[R, memoryview]:
        """Do as SimClient."""
        if api in OF_PARTITIONS:
            return await self._ask_leaders(api, request, response, payload, timeout_s)
        key = _coordinated(api, request)
        if key is None:
            return await self._ask_host(self._any_host(), api, request, response, payload, timeout_s)
        host = self._coordinators.get(key) or await self._find_coordinator(key)
        try:
            answer = await self._ask_host(host, api, request, response, payload, timeout_s)
        except (BrokerNotAvailableError, NotCoordinatorError, CoordinatorNotAvailableError):
            self._coordinators.pop(key, None)
            raise
        if any(code == NotCoordinatorError.code for code in _codes(answer[0])):
            self._coordinators.pop(key, None)
        return answer

    async def ask_until(
        self, api: Api, request: Message, response: type[R], payload: bytes = b"", *, deadline_s: float = 60.0
    ) -> R:
        """Do as SimClient."""
        end, backoff_s = self.loop.time() + deadline_s, BACKOFF_S
        while True:
            try:
                answer, _ = await self.ask(api, request, response, payload)
                code = next((c for c in _codes(answer) if c), 0) if api in WHOLE else 0
                if not code or not error_from_code(code, "").retriable or self.loop.time() > end:
                    return answer
            except SparklogError as e:
                if not e.retriable or self.loop.time() > end:
                    raise
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)

    def disconnect(self) -> None:
        for connection in self._connections.values():
            connection.disconnect()

    # --- leaders

    async def _ask_leaders(
        self, api: Api, request: Any, response: type[R], payload: bytes, timeout_s: float
    ) -> tuple[R, memoryview]:
        keys = [TopicPartition(p.topic, p.partition) for p in request.partitions]
        if len(keys) == 1:
            host = self._leader_host(keys[0])
            if host is None:
                await self._look_up()
                host = self._leader_host(keys[0])
            if host is None:
                raise LeaderNotAvailableError(f"nobody leads {keys[0]}")
            return await self._ask_one(host, keys, api, request, response, payload, timeout_s)
        if any(self._leader_host(key) is None for key in keys):
            await self._look_up()
        by_host: dict[str | None, list[int]] = {}
        for i, key in enumerate(keys):
            by_host.setdefault(self._leader_host(key), []).append(i)
        if set(by_host) == {None}:
            raise LeaderNotAvailableError(f"nobody leads {keys}")
        if len(by_host) == 1:
            return await self._ask_one(next(iter(by_host)) or "", keys, api, request, response, payload, timeout_s)
        return await self._ask_several(by_host, keys, api, request, response, timeout_s)

    async def _ask_several(
        self,
        by_host: Mapping[str | None, Sequence[int]],
        keys: Sequence[TopicPartition],
        api: Api,
        request: Any,
        response: type[R],
        timeout_s: float,
    ) -> tuple[R, memoryview]:
        """Send one request to each host and join the answers. Partitions without an answer have no leader."""
        asked = {host: indexes for host, indexes in by_host.items() if host is not None}
        answers = await asyncio.gather(
            *(
                self._ask_one(
                    host, [keys[i] for i in indexes], api,
                    replace(request, partitions=[request.partitions[i] for i in indexes]), response, b"", timeout_s,
                )
                for host, indexes in asked.items()
            ),
            return_exceptions=True,
        )  # fmt: skip
        found: dict[int, tuple[Any, memoryview]] = {}
        whole: Any = None
        error: BaseException = LeaderNotAvailableError(f"nobody leads {keys}")
        for indexes, answer in zip(asked.values(), answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, SparklogError):
                    raise answer
                error = answer
                continue
            message, data = answer
            whole, start = message, 0
            for i, result in zip(indexes, message.results, strict=True):  # type: ignore[attr-defined]
                length = getattr(result, "length_bytes", 0)
                found[i] = result, data[start : start + length]
                start += length
        if whole is None or (api is not Api.FETCH and len(found) < len(keys)):
            raise error
        kind = type(whole.results[0])
        results = [found[i][0] if i in found else _without_leader(kind, key) for i, key in enumerate(keys)]
        whole_data = b"".join(bytes(found[i][1]) for i in range(len(keys)) if i in found)
        return replace(whole, results=results), memoryview(whole_data)

    async def _ask_one(
        self,
        host: str,
        keys: Sequence[TopicPartition],
        api: Api,
        request: Message,
        response: type[R],
        payload: bytes,
        timeout_s: float,
    ) -> tuple[R, memoryview]:
        try:
            answer = await self._ask_host(host, api, request, response, payload, timeout_s)
        except BrokerNotAvailableError:
            for key in [k for k, (_, leader) in self._leaders.items() if leader == host]:
                self._forget(key)
            raise
        for key, result in zip(keys, answer[0].results, strict=True):  # type: ignore[attr-defined]
            if result.error_code in (*MISPLACED, UNKNOWN):
                self._forget(key)
            if result.error_code == UNKNOWN:
                result.error_code = NotLeaderError.code  # the broker does not have it yet
        return answer

    def _leader_host(self, key: TopicPartition) -> str | None:
        return self._leaders.get(key, (-1, ""))[1] or None

    def _forget(self, key: TopicPartition) -> None:
        self._leaders[key] = self._leaders.get(key, (-1, ""))[0], ""

    async def _look_up(self) -> None:
        """Read the metadata; concurrent requests share one answer. Raises BrokerNotAvailableError."""
        if self._looking is None or self._looking.done():
            self._looking = self.loop.create_task(self._read_metadata())
        await asyncio.shield(self._looking)

    async def _read_metadata(self) -> None:
        answer, _ = await self._of_any(Api.METADATA, MetadataRequest(None), MetadataResponse)
        hosts = {b.broker_id: b.host for b in answer.brokers}
        for topic in answer.topics:
            for state in topic.partitions:
                key = TopicPartition(topic.name, state.partition)
                known, host = self._leaders.get(key, (-1, ""))
                if state.leader_epoch > known or (state.leader_epoch == known and not host):
                    self._leaders[key] = state.leader_epoch, hosts.get(state.leader, "")

    # --- coordinators, and anybody

    async def _find_coordinator(self, key: tuple[int, str]) -> str:
        request = g.FindCoordinatorRequest(key[1], key[0])
        found, _ = await self._of_any(Api.FIND_COORDINATOR, request, g.FindCoordinatorResponse)
        self._coordinators[key] = found.host
        return found.host

    async def _of_any(self, api: Api, request: Message, response: type[R]) -> tuple[R, memoryview]:
        error: SparklogError = BrokerNotAvailableError("there are no brokers")
        for _ in self._hosts:
            try:
                return await self._ask_host(self._any_host(), api, request, response, b"", LOOK_UP_TIMEOUT_S)
            except SparklogError as e:
                if not e.retriable:
                    raise
                error = e
        raise error

    def _any_host(self) -> str:
        self._turn += 1
        return self._hosts[self._turn % len(self._hosts)]

    async def _ask_host(
        self, host: str, api: Api, request: Message, response: type[R], payload: bytes, timeout_s: float
    ) -> tuple[R, memoryview]:
        connection = self._connections.get(host)
        if connection is None:
            connection = self._connections[host] = SimClient(self.loop, self.net, self._host, host)
        self.requests_begun += 1
        try:
            return await connection.ask(api, request, response, payload, timeout_s=timeout_s)
        finally:
            self.requests_ended += 1


def _without_leader(kind: type[Any], key: TopicPartition) -> Any:
    """Return the result of a partition without an answer."""
    return kind(*key, LeaderNotAvailableError.code)


def _codes(answer: Any) -> Iterable[int]:
    for name in ("results", "offsets"):
        for result in getattr(answer, name, ()):
            yield getattr(result, "error_code", 0)


def _coordinated(api: Api, request: Any) -> tuple[int, str] | None:
    """Return type and key of the coordinator of a request; None if any broker answers it."""
    match api:
        case Api.GROUP_HEARTBEAT | Api.OFFSET_COMMIT | Api.OFFSET_FETCH:
            return GROUP, request.group_id
        case Api.TXN_OFFSET_COMMIT:
            return GROUP, request.group_id
        case Api.INIT_PRODUCER_ID:
            named = FENCING_TOKENS_ID if request.fencing_token else request.transactional_id
            return (TRANSACTION, named) if named else None
        case Api.END_TXN:
            return TRANSACTION, request.transactional_id
        case Api.JOIN_SHARED_TXN | Api.END_SHARED_TXN:
            return TRANSACTION, shared_transactional_id(request.app_id)
        case _:
            return None
