"""Answers that refuse a whole request by name: each entry of the request has the error.

A client whose connection is closed connects and sends the same request again, without an end. So a request that cannot
be decoded completely, and a request in a version that is not served, get an answer with an error that clients do not
repeat. The answer is made from the part of the request that can be decoded. Three kinds of answers exist:

    error of the answer        answers with a field `error_code` of their own, such as JoinGroup
    errors of the entries      other answers: each topic, partition, group and so on of the request has the error
    no error                   answers without a place for one; the gateway closes the connection
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sparklog.kafka.wire.codec import Body, Part, encoder, partial_decoder
from sparklog.kafka.wire.errors import Kafka, text_of
from sparklog.kafka.wire.schema import REQUEST, RESPONSE, Field, messages

REFUSED_ENTRIES_MAX = 100_000
"""Largest number of entries of a refused request that are answered. The answer to a request with more is incomplete."""
ENTRY_ANSWER_BYTES = 64
"""Assumed size in bytes of the answer to one refused entry, without its name."""
ERROR_CODE = "error_code"
_IN_ENTRIES = frozenset({"Fetch", "Metadata"})
"""APIs whose clients repeat the request after an error of the answer, and end their attempts after errors of the
entries."""
_FINAL = {("Metadata", Kafka.INVALID_REQUEST): Kafka.INVALID_TOPIC_EXCEPTION}
"""Codes in place of those that clients of an API repeat. Clients wait for a topic until METADATA calls it invalid."""
_ELEMENT = ""


class _Entries(NamedTuple):
    """A list of an answer that has one element for each element of a list of the request."""

    answer: str
    """Name of the answer's list."""
    request: str
    """Name of the request's list; "": the answer's list has a single element."""
    names: Mapping[str, str]
    """The request's field with the value of a field of the answer; _ELEMENT: the element itself."""
    inner: _Entries | None = None
    """Lists in the elements."""


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_TOPIC = _same("name", "topic_id")
_INDEX = _same("partition_index")
_CONFIGURED = _same("resource_type", "resource_name")
_BY_PARTITION = _Entries("topics", "topics", _TOPIC, _Entries("partitions", "partitions", _INDEX))
_ENTRIES: dict[str, tuple[_Entries, ...]] = {
    "Produce": (
        _Entries("responses", "topic_data", _TOPIC, _Entries("partition_responses", "partition_data", _same("index"))),
    ),
    "Fetch": (
        _Entries(
            "responses",
            "topics",
            _same("topic", "topic_id"),
            _Entries("partitions", "partitions", {"partition_index": "partition"}),
        ),
    ),
    "ListOffsets": (_BY_PARTITION,),
    "Metadata": (_Entries("topics", "topics", _TOPIC),),
    "OffsetCommit": (_BY_PARTITION,),
    "OffsetFetch": (
        _Entries(
            "topics",
            "topics",
            _same("name"),
            _Entries("partitions", "partition_indexes", {"partition_index": _ELEMENT}),
        ),
        _Entries("groups", "groups", _same("group_id")),
    ),
    "FindCoordinator": (_Entries("coordinators", "coordinator_keys", {"key": _ELEMENT}),),
    "DescribeGroups": (_Entries("groups", "groups", {"group_id": _ELEMENT}),),
    "CreateTopics": (_Entries("topics", "topics", _same("name")),),
    "DeleteTopics": (
        _Entries("responses", "topic_names", {"name": _ELEMENT}),
        _Entries("responses", "topics", _TOPIC),
    ),
    "DeleteRecords": (_BY_PARTITION,),
    "OffsetForLeaderEpoch": (
        _Entries("topics", "topics", _same("topic"), _Entries("partitions", "partitions", _same("partition"))),
    ),
    "AddPartitionsToTxn": (
        _Entries(
            "results_by_topic_v3_and_below",
            "v3_and_below_topics",
            _same("name"),
            _Entries("results_by_partition", "partitions", {"partition_index": _ELEMENT}),
        ),
    ),
    "TxnOffsetCommit": (_BY_PARTITION,),
    "CreateAcls": (_Entries("results", "creations", {}),),
    "DeleteAcls": (_Entries("filter_results", "filters", {}),),
    "ElectLeaders": (
        _Entries(
            "replica_election_results",
            "topic_partitions",
            _same("topic"),
            _Entries("partition_result", "partitions", {"partition_id": _ELEMENT}),
        ),
    ),
    "AlterClientQuotas": (_Entries("entries", "entries", _same("entity")),),
    "AlterUserScramCredentials": (
        _Entries("results", "deletions", {"user": "name"}),
        _Entries("results", "upsertions", {"user": "name"}),
    ),
    "DescribeConfigs": (_Entries("results", "resources", _CONFIGURED),),
    "AlterConfigs": (_Entries("responses", "resources", _CONFIGURED),),
    "IncrementalAlterConfigs": (_Entries("responses", "resources", _CONFIGURED),),
    "DescribeLogDirs": (_Entries("results", "", {}),),
    "CreatePartitions": (_Entries("results", "topics", _same("name")),),
    "DeleteGroups": (_Entries("results", "groups_names", {"group_id": _ELEMENT}),),
    "DescribeProducers": (
        _Entries(
            "topics",
            "topics",
            _same("name"),
            _Entries("partitions", "partition_indexes", {"partition_index": _ELEMENT}),
        ),
    ),
    "ConsumerGroupDescribe": (_Entries("groups", "group_ids", {"group_id": _ELEMENT}),),
    "DescribeTopicPartitions": (_Entries("topics", "topics", _same("name")),),
    "DescribeTransactions": (_Entries("transaction_states", "transactional_ids", {"transactional_id": _ELEMENT}),),
}
"""Lists with errors, by API. APIs without an entry have errors of the answer alone."""


def is_answerable(api: str, version: int) -> bool:
    """Return True if the layout of the version's answer is known."""
    return version in messages()[RESPONSE, api].versions


def refused_entries(size_bytes: int) -> int:
    """Return an upper bound of the entries of a refused request of `size_bytes` that are answered."""
    return min(size_bytes, REFUSED_ENTRIES_MAX)


def refusal_bytes(size_bytes: int) -> int:
    """Return an upper bound of the size in bytes of the answer to a refused request of `size_bytes`."""
    return size_bytes + ENTRY_ANSWER_BYTES * refused_entries(size_bytes)


def encoded_refusal(api: str, version: int, data: memoryview, code: Kafka, reason: str) -> list[Part] | None:
    """Return the encoded answer that refuses the request `data`, without the heads of both. Returns None if no answer
    is possible: the answer has no place for an error, or the client expects none (PRODUCE with acks 0). Raises
    InvalidRequestError for a version that the table of messages lacks.

    `code`: the error; `reason`: its text, for answers that have one.
    """
    request = partial_decoder(REQUEST, api, version)(data, REFUSED_ENTRIES_MAX)
    if api == "Produce" and request.get("acks", 0) == 0:
        return None
    body = error_answer(api, version, request, code, reason)
    return None if body is None else encoder(RESPONSE, api, version)(body)


def error_answer(api: str, version: int, request: Body, code: Kafka, reason: str) -> Body | None:
    """Return the answer with the error `code` to a request, of which the beginning is enough. Returns None if the
    answer has no place for an error. `reason`: as in `encoded_refusal`."""
    fields = _present(messages()[RESPONSE, api].fields, version)
    if ERROR_CODE in fields and api not in _IN_ENTRIES:
        return _refusal(fields, version, code, reason)
    final = _FINAL.get((api, code), code)
    body = _refusal(fields, version, Kafka.NONE, reason)
    has_error = False
    for entries in _ENTRIES.get(api, ()):
        if entries.answer in fields:
            elements = _elements(entries, fields[entries.answer], request, version, final, reason)
            body[entries.answer] = [*(body.get(entries.answer) or ()), *elements]
            has_error = has_error or bool(elements)
    if has_error:
        return body
    return _refusal(fields, version, code, reason) if ERROR_CODE in fields else None


def _elements(
    entries: _Entries, field: Field, request: Body, version: int, code: Kafka, reason: str
) -> list[dict[str, Any]]:
    """Return the elements with an error, for all complete elements of the request."""
    fields = _present(field.fields, version)
    plain = _refusal(fields, version, code, reason)
    if not entries.request:
        return [plain]
    names = [(name, source) for name, source in entries.names.items() if name in fields]
    inner = entries.inner
    elements: list[dict[str, Any]] = []
    for one in request.get(entries.request) or ():
        try:
            element = plain | {name: one[source] if source else one for name, source in names}
        except KeyError:  # the request ends inside the element
            continue
        if inner is not None:
            element[inner.answer] = _elements(inner, fields[inner.answer], one, version, code, reason)
            if not element[inner.answer] and one.get(inner.request) != []:
                continue
        elements.append(element)
    return elements


def _present(fields: tuple[Field, ...], version: int) -> dict[str, Field]:
    return {f.name: f for f in fields if version in f.versions and f.tag is None}


def _refusal(fields: Mapping[str, Field], version: int, code: Kafka, reason: str) -> dict[str, Any]:
    """Return a structure with the error and without content."""
    return {name: _value(field, version, code, reason) for name, field in fields.items() if _is_written(field)}


def _is_written(field: Field) -> bool:
    return not field.has_default or field.name.endswith(ERROR_CODE) or field.name == "error_message"


def _value(field: Field, version: int, code: Kafka, reason: str) -> Any:
    may_be_null = field.null is not None and version in field.null
    if field.name.endswith(ERROR_CODE):
        return code
    if field.name == "error_message":
        return text_of(reason)
    if field.is_list or field.type == "records":
        return None if may_be_null else []
    if field.type == "bool":
        return False
    empty = {"string": "", "bytes": b"", "uuid": None}
    if field.type in empty:
        return None if may_be_null else empty[field.type]
    return -1
