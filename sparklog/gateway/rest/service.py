"""Answers to requests of the schema registry, with the state that all clients of one gateway share.

Each request reads the newest records of the log first, on the client's own connection to the broker, which checks the
client's permission in the same exchange. So an answer is never older than the request. A change is appended on the
condition that the log has not grown since; otherwise the operation is repeated with the new state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from sparklog.errors import ClusterAuthorizationFailedError, InvalidConfigError, SparklogError
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.rest.registered import RegisteredSchemas
from sparklog.gateway.rest.subject_topics import NewVersion, SubjectTopics
from sparklog.gateway.schemas.operations import (
    Outcome,
    Request,
    delete_version,
    referenced_subjects,
    register,
    with_id,
    with_verdict,
)
from sparklog.gateway.schemas.registry_log import PAUSE_S, RegistryLog
from sparklog.gateway.schemas.routes import Route, Scope, find_route
from sparklog.gateway.schemas.state import Record, RegistryState
from sparklog.kafka.schemas.errors import (
    FORBIDDEN,
    INCOMPATIBLE,
    INVALID_SCHEMA,
    STORE_FAILED,
    TIMED_OUT,
    RegistryError,
)
from sparklog.kafka.values.schemas import topic_of
from sparklog.protocol.schema_messages import (
    SUBJECTS_PER_REQUEST_MAX,
    SchemaRecord,
    SchemaRecordsRequest,
    SchemaRecordsResponse,
)
from sparklog.security.acls import Operation

REQUEST_S = 30.0
"""Longest time in s in which a request is repeated, while the log has no leader or others change the registry."""
QUERY_FIELDS_MAX = 20


class Answer(NamedTuple):
    """The answer to a request. `body` is encoded as JSON; a text is sent as it is."""

    status: int
    body: Any


class SchemaService:
    """Answers requests. Event-loop thread only."""

    def __init__(self, log: RegistryLog, topics: SubjectTopics) -> None:
        self._log = log
        self._topics = topics
        self._registered = RegisteredSchemas(log)

    async def answer(self, broker: BrokerConnection, method: str, target: str, body: bytes) -> Answer:
        """Answer one request of the client of a connection."""
        try:
            async with asyncio.timeout(REQUEST_S):
                return Answer(200, await self._answer(broker, method, target, body))
        except RegistryError as e:
            return error_answer(e)
        except TimeoutError:
            return error_answer(RegistryError(TIMED_OUT, f"the registry's log has not answered in {REQUEST_S:g} s"))
        except ClusterAuthorizationFailedError:
            return error_answer(RegistryError(FORBIDDEN, "User is denied the operation on the cluster"))
        except SparklogError as e:
            return error_answer(RegistryError(STORE_FAILED, f"Error in the backend data store: {e}"))

    async def _answer(self, broker: BrokerConnection, method: str, target: str, body: bytes) -> Any:
        path, _, query = target.partition("?")
        route, request = find_route(method, path)
        request = request._replace(
            query=_query(query),
            body=_object(body) if method in ("POST", "PUT") else {},
            cluster_id=broker.broker.cluster_id,
        )
        topics = [topic_of(request.subject)] if route.scope is Scope.SUBJECT else []
        await self._permit(broker, route, topics)
        if route.has_schema:
            referenced = sorted({topic_of(subject) for subject in referenced_subjects(request.body)})
            await self._permit(broker, route._replace(operation=Operation.DESCRIBE), referenced)
        if route.scope is Scope.VISIBLE:
            request = with_id(self._log.state, request)
            request = request._replace(visible=await self._visible(broker, request))
        while True:
            state = self._log.state
            outcome = await self._run(route, state, request)
            if outcome.schema is not None:
                outcome = await self._prepare(broker, request.subject, outcome)
            if route.run is delete_version and outcome.records and not request.flag("permanent"):
                await self._topics.check_deletion(broker, request.subject, outcome.body, self._registered)
            if not outcome.records or await self._append(broker, route, topics, outcome.records, state.offset):
                if route.run is register:
                    await self._topics.set_key_schema(broker, request.subject, self._registered)
                return outcome.body
            await asyncio.sleep(PAUSE_S)

    async def _prepare(self, broker: BrokerConnection, subject: str, outcome: Outcome) -> Outcome:
        """Prepare the topic for a new version, or add the effects and the refusal to the answer to a check. Raises
        RegistryError."""
        assert outcome.schema is not None
        new = NewVersion(subject, outcome.number, outcome.schema, outcome.is_registered)
        if not outcome.is_check:
            await self._topics.prepare(broker, new, self._registered, validates_only=False)
            return outcome
        try:
            effects = await self._topics.prepare(broker, new, self._registered, validates_only=True)
        except RegistryError as e:
            if e.code not in (INCOMPATIBLE, INVALID_SCHEMA):
                raise
            return Outcome(with_verdict(outcome.body, [str(e)], []))
        return Outcome(with_verdict(outcome.body, [], effects))

    async def _run(self, route: Route, state: RegistryState, request: Request) -> Outcome:
        if not route.has_schema:
            return route.run(state, self._log.schemas, request)
        try:
            return await self._log.run(partial(route.run, state, self._log.schemas, request))
        except InvalidConfigError as e:  # a library is missing
            raise RegistryError(STORE_FAILED, str(e)) from None

    # -- the log

    async def _permit(self, broker: BrokerConnection, route: Route, topics: Sequence[str]) -> None:
        """Bring the state up to date. Raises RegistryError if the client lacks the permission."""
        is_on_cluster = route.scope is Scope.CLUSTER
        operation = route.operation.value if topics or is_on_cluster else ""
        request = SchemaRecordsRequest(self._log.state.offset, operation, list(topics), is_on_cluster)
        _check_permitted(await self._log.exchange(broker, request), route)

    async def _append(
        self, broker: BrokerConnection, route: Route, topics: list[str], records: Iterable[Record], end: int
    ) -> bool:
        """Append records if the log still ends at `end`, and return True if they were appended."""
        request = SchemaRecordsRequest(
            self._log.state.offset,
            route.operation.value,
            topics,
            route.scope is Scope.CLUSTER,
            end,
            [SchemaRecord(key, value) for key, value in records],
        )
        answer = await self._log.exchange(broker, request)
        _check_permitted(answer, route)
        return answer.is_appended

    async def _visible(self, broker: BrokerConnection, request: Request) -> set[str]:
        """Return the subjects, of those that the request is about, that the client may describe."""
        subjects: Iterable[str] = self._log.state.subjects
        if request.schema_id:
            subjects = {subject for subject, _, _ in self._log.state.users(request.schema_id)}
        by_topic: dict[str, list[str]] = {}
        for subject in subjects:
            by_topic.setdefault(topic_of(subject), []).append(subject)
        visible: set[str] = set()
        topics = list(by_topic)
        for start in range(0, len(topics), SUBJECTS_PER_REQUEST_MAX):
            part = topics[start : start + SUBJECTS_PER_REQUEST_MAX]
            answer = await self._log.exchange(
                broker, SchemaRecordsRequest(self._log.state.offset, Operation.DESCRIBE.value, part)
            )
            for topic, result in zip(part, answer.results, strict=True):
                visible.update(by_topic[topic] if not result.error_code else ())
        return visible


def _check_permitted(answer: SchemaRecordsResponse, route: Route) -> None:
    if any(result.error_code for result in answer.results):
        raise RegistryError(FORBIDDEN, f"User is denied operation {route.operation} on the subject's topic")


def _query(text: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX))
    except ValueError:
        raise RegistryError(400, f"the query is not UTF-8, or has more than {QUERY_FIELDS_MAX} fields") from None


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise RegistryError(400, f"the request's body is no JSON: {e}") from None
    if not isinstance(value, dict):
        raise RegistryError(400, "the request's body is no JSON object")
    return value


def error_answer(error: RegistryError) -> Answer:
    """Return the answer that states an error."""
    return Answer(error.status, {"error_code": error.code, "message": str(error)})
