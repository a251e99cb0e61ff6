"""Commits and look-ups of a group's offsets: one request each, repeated as long as the policy allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from sparklog.client.group.membership import to_topics
from sparklog.client.net import arguments as arg
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.coordinator_key import group_key
from sparklog.client.net.outcomes import raise_failed
from sparklog.client.net.paging import pages
from sparklog.client.net.retry import Retries, RetryPolicy, request_until
from sparklog.errors import InvalidRequestError, UnstableOffsetCommitError, error_from_code
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.group_messages import (
    CommittedOffset,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from sparklog.types import GroupMetadata, OffsetAndMetadata, TopicPartition, whole_number

M = TypeVar("M", bound=Message)
Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]

METADATA_CHARS_MAX = 4096


def checked_offsets(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the caller's offsets as OffsetAndMetadata. Raises InvalidRequestError for a malformed
    partition or offset."""
    if not isinstance(offsets, Mapping):
        raise InvalidRequestError(
            f"offsets are given as {{TopicPartition(topic, partition): next offset to read}}, not as {offsets!r}"
        )
    checked = {}
    for tp, entry in offsets.items():
        if not (isinstance(tp, tuple) and len(tp) == 2 and isinstance(tp[0], str) and whole_number(tp[1]) is not None):
            raise InvalidRequestError(f"cannot commit for {tp!r}: TopicPartition(topic, partition) names a partition")
        partition = arg.partition("offsets", tp)
        offset = entry if isinstance(entry, OffsetAndMetadata) else OffsetAndMetadata(entry)
        offset_number, note, epoch = offset
        number = whole_number(offset_number)
        if isinstance(note, str) and len(note) > METADATA_CHARS_MAX:
            arg.refuse(f"metadata of {partition}", note, f"at most {METADATA_CHARS_MAX} characters are kept")
        if number is None or not 0 <= number <= arg.INT64_MAX:
            raise InvalidRequestError(
                f"cannot commit {offset_number!r} for {partition}: an offset is a whole number from 0 on"
            )
        checked[partition] = OffsetAndMetadata(
            number,
            "" if note is None else arg.text(f"metadata of {partition}", note),  # Kafka's clients: None is no note
            arg.whole(-1, arg.INT32_MAX)(f"leader_epoch of {partition}", epoch),
        )
    return checked


def as_committed(offsets: Offsets) -> list[CommittedOffset]:
    """Return offsets in the form of the message. Raises InvalidRequestError."""
    return [CommittedOffset(*tp, o.offset, o.leader_epoch, o.metadata) for tp, o in checked_offsets(offsets).items()]


def commit_offsets(
    cluster: Cluster,
    member: GroupMetadata,
    offsets: Offsets,
    *,
    sequence: int = -1,
    policy: RetryPolicy,
) -> None:
    """Commit offsets for a member, or for a group without members.

    One attempt commits either nothing, or all partitions that the group does not refuse. If the group refuses some, the
    error of the first is raised with the outcomes of all. `sequence` numbers the commits of a member; -1: not numbered.
    Raises the group's errors. If the outcome is not known, raises RequestTimedOutError or BrokerNotAvailableError.
    """
    committed = as_committed(offsets)
    if not committed:
        return
    request = OffsetCommitRequest(member.group_id, committed, member.member_id, member.member_epoch, sequence)
    response = _send(cluster, member.group_id, Api.OFFSET_COMMIT, request, OffsetCommitResponse, policy)
    raise_failed(
        {
            TopicPartition(r.topic, r.partition): error_from_code(r.error_code, r.message) if r.error_code else None
            for r in response.results
        },
        "committed",
    )


def fetch_offsets(
    cluster: Cluster,
    member: GroupMetadata,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = True,
    policy: RetryPolicy,
) -> tuple[dict[TopicPartition, OffsetAndMetadata | None], list[TopicPartition]]:
    """Return the committed offset of each partition (None without one), and the partitions whose offsets an open
    transaction can change.

    `partitions` None stands for all partitions with offsets. `require_stable=False` returns the present offsets of the
    latter partitions, too. Raises the group's errors.
    """
    remaining = None if partitions is None else set(partitions)

    def ask(page: OffsetFetchRequest) -> OffsetFetchResponse:
        if remaining is not None:
            page.partitions = to_topics(remaining)
        return _send(cluster, member.group_id, Api.OFFSET_FETCH, page, OffsetFetchResponse, policy)

    def following(page: OffsetFetchResponse) -> dict[str, object]:
        if remaining is not None:
            remaining.difference_update((o.topic, o.partition) for o in page.offsets)
        last = page.offsets[-1:]
        return {"after_topic": last[0].topic, "after_partition": last[0].partition} if last else {}

    request = OffsetFetchRequest(
        member.group_id, None, require_stable, member.member_id, member.member_epoch, paged=True
    )
    fetched: dict[TopicPartition, OffsetAndMetadata | None] = {}
    unstable: list[TopicPartition] = []
    for o in (o for page in pages(ask, request, following) for o in page.offsets):
        tp = TopicPartition(o.topic, o.partition)
        if o.error_code == UnstableOffsetCommitError.code:
            unstable.append(tp)
        elif o.error_code:
            raise error_from_code(o.error_code, o.message)
        else:
            fetched[tp] = None if o.offset < 0 else OffsetAndMetadata(o.offset, o.metadata, o.leader_epoch)
    return fetched, unstable


def _send(cluster: Cluster, group_id: str, api: Api, request: Message, response: type[M], policy: RetryPolicy) -> M:
    """Send a request to the group's coordinator; only once if the policy has no time for another attempt."""
    if policy.timeout_ms == 0:
        return cluster.coordinator_request(
            group_key(group_id), api, request, response, timeout_ms=policy.request_timeout_ms
        )
    return request_until(cluster, api, request, response, Retries(policy), coordinator=group_key(group_id))
