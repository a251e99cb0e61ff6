"""Deletes records by raising the log start offset of each partition."""

from __future__ import annotations

from collections.abc import Mapping

from sparklog.client.admin.call import Call
from sparklog.client.net.answers import check_named
from sparklog.client.net.leader_questions import LedGroup, until_led
from sparklog.client.net.outcomes import NAMES_MAX, raise_failed
from sparklog.client.reading.offset_lookup import find_offsets
from sparklog.errors import InvalidRequestError, OffsetOutOfRangeError, SparklogError, error_from_code
from sparklog.protocol.messages import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsResponse
from sparklog.types import TopicPartition, whole_number

ALL = -1
NOT_DONE = -1


def delete_records(call: Call, before_offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Delete the records below an offset in each partition; see `Admin.delete_records`.

    All offsets are compared with the partitions' ends first: nothing is deleted if an offset lies above its partition's
    end. If a leader changes meanwhile, the request is repeated at the new leader.
    """
    wanted = {TopicPartition(*tp): _check_offset(tp, offset) for tp, offset in before_offsets.items()}
    if not wanted:
        return {}
    latest = dict.fromkeys(wanted, "latest")
    ends = {tp: end.offset for tp, end in find_offsets(call.cluster, latest, call.attempts).items()}
    # ALL is resolved once: a repeated request must not delete later appends
    wanted = {tp: ends[tp] if offset == ALL else offset for tp, offset in wanted.items()}
    _refuse_beyond(wanted, ends)
    outcomes: dict[TopicPartition, int | SparklogError] = {}

    def ask(group: LedGroup) -> dict[TopicPartition, int | SparklogError]:
        partitions = [DeleteRecordsPartition(*tp, wanted[tp]) for tp in group.partitions]
        request = DeleteRecordsRequest(group.timeout_ms, partitions)
        response = call.ask_broker(group.leader, request, DeleteRecordsResponse, group.timeout_ms)
        check_named(group.leader, partitions, response.results)
        found = {
            TopicPartition(r.topic, r.partition): error_from_code(r.error_code, r.message)
            if r.error_code
            else r.low_watermark
            for r in response.results
        }
        outcomes.update(found)
        return found

    def refused(tp: TopicPartition, error: SparklogError) -> int:
        outcomes[tp] = error
        return NOT_DONE

    try:
        until_led(call.cluster, wanted, ask, call.attempts, refused=refused)
    except SparklogError as e:
        outcomes |= {tp: e for tp in wanted if _is_open(outcomes.get(tp))}
    raise_failed({tp: outcomes[tp] for tp in wanted}, "deleted")
    return {tp: low for tp in wanted if isinstance(low := outcomes[tp], int)}


def _is_open(outcome: int | SparklogError | None) -> bool:
    """True if a partition has no result yet, or a retriable error."""
    return outcome is None or (isinstance(outcome, SparklogError) and outcome.retriable)


def _refuse_beyond(wanted: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
    """Raise OffsetOutOfRangeError if a requested offset lies above its partition's end. The error names up to NAMES_MAX
    such partitions."""
    beyond = [f"{tp} ends at {ends[tp]}" for tp, offset in wanted.items() if offset > ends[tp]]
    if not beyond:
        return
    more = f" and {len(beyond) - NAMES_MAX} more" if len(beyond) > NAMES_MAX else ""
    offsets = sorted({offset for tp, offset in wanted.items() if offset > ends[tp]})
    raise OffsetOutOfRangeError(
        f"records before offset {', '.join(map(str, offsets[:NAMES_MAX]))} cannot be deleted: "
        f"{', '.join(beyond[:NAMES_MAX])}{more}. Nothing was deleted: name an offset up to the end for each partition, "
        f"or -1 (latest) for all its records"
    )


def _check_offset(tp: object, offset: object) -> int:
    """Return the offset if it is valid. Raises InvalidRequestError."""
    number = whole_number(offset)
    if number is None or not ALL <= number < 2**63:
        raise InvalidRequestError(f"{tp}: delete records before {offset!r}: an offset is needed, or -1 for all")
    return number
