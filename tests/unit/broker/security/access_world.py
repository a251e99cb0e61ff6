"""A real broker with `authorizer = acl` behind its pipeline, with requests of any peer that a test names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from sparklog_broker.config import make_config
from sparklog_broker.counters.requests import RequestTimes
from sparklog_broker.pipeline import Pipeline
from sparklog_broker.registry import HANDLERS

from sparklog.protocol import group_messages as groups
from sparklog.protocol import messages as m
from sparklog.protocol import topic_messages as topics
from sparklog.protocol import transaction_messages as txn
from sparklog.protocol.acl_messages import AclFilterEntry, DescribeAclsRequest
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.codec import decode_error_body, decode_response, encode
from sparklog.protocol.frames import RESPONSE_PREFIX, RequestPrefix
from sparklog.protocol.messages import ErrorBody
from sparklog.security.acl_records import acl_record
from sparklog.security.acls import Acl, Operation, PatternType, Permission, Resource
from sparklog.security.principals import Principal, user
from sparklog.security.records import RecordKind
from tests.support.brokers import coordinating, started
from tests.support.raw_client import envelope_batch

ADMIN, MALLORY, ALICE = user("admin"), user("mallory"), user("alice")
HOST = "10.0.0.7"
BATCH = envelope_batch(3, 20)
SESSION_MS = 3_600_000
"""Longer than the tests of a module take on a loaded machine: a member whose session ends counts as a change."""


class Answer(NamedTuple):
    """`message`: the response, or the ErrorBody. `data`: all bytes after the prefix."""

    error_code: int
    message: Any
    data: bytes


class Connected:
    """The pipeline's view of a connection."""

    peer_host = HOST
    peer_name = f"{HOST}:5"

    def __init__(self, principal: Principal, local_host: str, mute: Callable[[int], None]) -> None:
        self.mute_ms = 0
        self._told = mute
        self.local_address = (local_host, 9292)
        self.principal = principal
        self.authentication = None
        self.is_identified = True
        self.local_socket = "sparklog-123"
        self.times = RequestTimes()
        self.listener = "CLIENTS"
        self.client_id = "tests"
        self.gateway, self.is_gateway = "", False

    def mute(self, mute_ms: int) -> None:
        self.mute_ms = mute_ms
        self._told(mute_ms)


class World:
    """Made by `begin`. `ask` is the way in."""

    @classmethod
    async def begin(cls, directory: Path, **settings: object) -> World:
        """A broker that answers, and coordinates groups and transactions."""
        made = cls(directory, **settings)
        await made._open()
        return made

    def __init__(self, directory: Path, **settings: object) -> None:
        given = {"data.dir": str(directory), "authorizer": "acl", "super.users": "User:admin", **settings}
        self._config = make_config(given)
        self._local_host = "10.0.0.1"
        self.muted_ms: list[int] = []

    async def _open(self) -> None:
        self.broker = await started(self._config)
        await coordinating(self.broker)
        self.pipeline = Pipeline(
            self.broker,
            HANDLERS,
            self.broker.requests,
            self.broker.access,
            throttling=self.broker.throttling,
        )

    async def restart(self) -> None:
        """Another broker in the same directory, which answers once its coordinators do."""
        await self.close()
        await self._open()
        await self.broker.transactions.settled()

    def put_peers_on_its_host(self) -> None:
        """From now on peers are on the broker's host."""
        self._local_host = HOST

    async def close(self) -> None:
        self.broker.stop_waiting()
        assert await self.broker.close()

    async def ask(self, who: Principal, api: Api, request: Message, payload: bytes = b"") -> Answer:
        """Return the answer to the request."""
        header = encode(request)
        body = memoryview(bytearray(header + payload))
        prefix = RequestPrefix(api, APIS[api].version_max, 7, len(header), len(body))
        reply = await self.pipeline.answer(prefix, body, Connected(who, self._local_host, self.muted_ms.append))  # type: ignore[arg-type]
        if reply is None or not reply.parts:
            return Answer(0, None, b"")
        data = b"".join(bytes(part) for part in reply.parts if isinstance(part, bytes | memoryview))
        reply.release()
        _, _, error_code, _, header_bytes = RESPONSE_PREFIX.unpack_from(data)
        head = data[RESPONSE_PREFIX.size : RESPONSE_PREFIX.size + header_bytes]
        message: Message = decode_error_body(head) if error_code else decode_response(api, head, APIS[api].response)
        return Answer(error_code, message, data[RESPONSE_PREFIX.size :])

    async def do(self, who: Principal, api: Api, request: Message, payload: bytes = b"") -> Any:
        """The answer of a request that must succeed."""
        answer = await self.ask(who, api, request, payload)
        assert answer.error_code == 0, (api, answer.message)
        for code in item_codes(answer.message):
            assert code == 0, (api, answer.message)
        return answer.message

    async def grant(
        self,
        who: Principal,
        needs: Iterable[tuple[Operation, Resource]],
        *,
        permission: Permission = Permission.ALLOW,
        pattern: PatternType = PatternType.LITERAL,
    ) -> None:
        """Adds ACLs."""
        acls = [
            Acl(resource.resource_type, pattern, resource.name, who, "*", operation, permission)
            for operation, resource in needs
        ]
        if acls:
            await self.broker.security_records.change(dict(map(acl_record, acls)))

    async def revoke_all(self) -> None:
        there = self.broker.security_records.of_kind(RecordKind.ACLS)
        await self.broker.security_records.change({record(key): None for key in there})

    async def furnish(self) -> None:
        """The topic `secret` with records, the group `crew` with offsets and a member, an open transaction of `till`
        and a shared one of `app`."""
        for name in ("secret", "public"):
            await self.do(ADMIN, Api.CREATE_TOPIC, topics.CreateTopicRequest(name, 2))
            request = m.ProduceRequest(1, 1_000, [m.ProducePartition(name, 0, len(BATCH))])
            await self.do(ADMIN, Api.PRODUCE, request, BATCH)
        joins = groups.GroupHeartbeatRequest("crew", "m1", topics=["secret"], session_timeout_ms=SESSION_MS)
        await self.do(ADMIN, Api.GROUP_HEARTBEAT, joins)
        commit = groups.OffsetCommitRequest("idle", [groups.CommittedOffset("secret", 0, 1)])
        await self.do(ADMIN, Api.OFFSET_COMMIT, commit)
        await self.do(ADMIN, Api.INIT_PRODUCER_ID, txn.InitProducerIdRequest("till"))
        await self.do(ADMIN, Api.JOIN_SHARED_TXN, txn.JoinSharedTxnRequest("appl", 0, "run", 0))

    async def state(self) -> list[bytes]:
        """All that there is, as an operator sees it."""
        asked: list[tuple[Api, Message]] = [
            (Api.METADATA, topics.MetadataRequest()),
            (Api.LIST_GROUPS, groups.ListGroupsRequest()),
            (Api.DESCRIBE_GROUPS, groups.DescribeGroupsRequest(["crew", "idle"])),
            (Api.OFFSET_FETCH, groups.OffsetFetchRequest("idle")),
            (Api.OFFSET_FETCH, groups.OffsetFetchRequest("crew")),
            (Api.LIST_TRANSACTIONS, txn.ListTransactionsRequest()),
            (Api.DESCRIBE_TRANSACTIONS, txn.DescribeTransactionsRequest(["till", "__shared:appl"])),
            (Api.DESCRIBE_PRODUCERS, txn.DescribeProducersRequest("secret", 0)),
            (Api.DESCRIBE_ACLS, DescribeAclsRequest(AclFilterEntry())),
        ]
        seen = []
        for api, request in asked:
            answer = await self.ask(ADMIN, api, request)
            assert answer.error_code == 0, answer
            seen.append(answer.data)
        ids = self.broker.storage.producer_ids
        ids.take_ahead()  # else the block that is taken in the background counts as a change
        # the coordinators' tick reserves ids in advance: a reserved id is not issued yet
        seen.append(b"%d" % (ids.remaining + len(ids._reserved)))
        seen.append(repr(sorted(self.broker.cluster.image.security.items())).encode())
        return seen


def record(key: str) -> Any:
    from sparklog.security.records import RecordId

    return RecordId(RecordKind.ACLS, key)


def item_codes(message: Message | None) -> list[int]:
    """The error codes of an answer's items; nothing if it has none."""
    for field in ("results", "topics", "offsets", "groups", "transactions"):
        items = getattr(message, field, None)
        if items is not None and all(hasattr(item, "error_code") for item in items):
            return [item.error_code for item in items]
    return []


def text_of(answer: Answer) -> str:
    return answer.message.message if isinstance(answer.message, ErrorBody) else ""
