"""Requests that only the leader of a partition answers. They are repeated at the new leader after an election."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, NoReturn, TypeVar

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.retry import Attempts
from sparklog.errors import LeaderNotAvailableError, SparklogError, UnknownTopicOrPartitionError
from sparklog.types import TopicPartition

T = TypeVar("T")


class LedGroup(NamedTuple):
    """A request to the broker `leader` for several partitions. `for_others`: True if other brokers lead some of them.
    `timeout_ms` limits the answer."""

    leader: Endpoint
    partitions: list[TopicPartition]
    timeout_ms: int
    for_others: bool = False


Ask = Callable[[LedGroup], Mapping[TopicPartition, T | SparklogError]]


def refuse(tp: TopicPartition, error: SparklogError) -> NoReturn:
    """Raise the error of a partition."""
    raise error


def until_led(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    ask: Ask[T],
    attempts: Attempts,
    *,
    refused: Callable[[TopicPartition, SparklogError], T] = refuse,
    together: bool = False,
) -> dict[TopicPartition, T]:
    """Return the leaders' answers by partition.

    `ask` asks one broker: it returns an answer or an error for each partition of the group, or raises the error of all
    of them. Partitions with a retriable error are asked again at their current leader while `attempts` continue.
    `refused` turns any other error of a partition into a result, or raises.

    `together`: all answers have to come from one request. One leader is then asked for all partitions, and for all of
    them again if some fail. Raises a retriable error after the last attempt, and the errors of `refused`.
    """
    done: dict[TopicPartition, T] = {}
    pending = list(dict.fromkeys(partitions))
    rounds = 0
    while pending:
        answers = _round(cluster, pending, ask, attempts, chosen=rounds if together else None)
        failed: dict[TopicPartition, SparklogError] = {}
        for tp, answer in answers.items():
            if not isinstance(answer, SparklogError):
                done[tp] = answer
            elif answer.retriable:
                failed[tp] = answer
            else:
                done[tp] = refused(tp, answer)
        if failed:
            attempts.pause(next(iter(failed.values())))
        pending = pending if together and failed else list(failed)
        rounds += 1
    return done


def _round(
    cluster: Cluster, pending: list[TopicPartition], ask: Ask[T], attempts: Attempts, *, chosen: int | None
) -> dict[TopicPartition, T | SparklogError]:
    """Ask each leader once. With `chosen`, the number of the round, only one leader is asked, for all partitions; none
    is asked if the look-up of a leader has failed with a retriable error."""
    answers: dict[TopicPartition, T | SparklogError] = {}
    groups: dict[Endpoint, list[TopicPartition]] = {}
    for tp, located in cluster.leaders(pending, timeout_ms=attempts.attempt_ms).items():
        if isinstance(located, SparklogError):
            answers[tp] = located
        else:
            groups.setdefault(located.endpoint, []).append(tp)
    for_others = chosen is not None and len(groups) > 1
    if chosen is not None and any(isinstance(a, SparklogError) and a.retriable for a in answers.values()):
        return answers
    if chosen is not None and for_others:
        leaders = list(groups)
        groups = {leaders[chosen % len(leaders)]: [tp for tps in groups.values() for tp in tps]}
    for leader, tps in groups.items():
        answers |= _ask_leader(cluster, LedGroup(leader, tps, attempts.attempt_ms, for_others), ask)
    return answers


def _ask_leader(cluster: Cluster, group: LedGroup, ask: Ask[T]) -> dict[TopicPartition, T | SparklogError]:
    answers: dict[TopicPartition, T | SparklogError] = {}
    try:
        answers |= ask(group)
    except SparklogError as e:
        answers |= dict.fromkeys(group.partitions, e)
    errors = {tp: a for tp, a in answers.items() if isinstance(a, SparklogError)}
    is_astray = any(e.retriable for e in errors.values())
    cluster.look_again({tp.topic for tp in errors}, group.leader if is_astray else None)
    unknown = [tp for tp, e in errors.items() if isinstance(e, UnknownTopicOrPartitionError)]
    if unknown:
        answers |= _unheard_of(cluster, unknown, group)
    return answers


def _unheard_of(
    cluster: Cluster, partitions: list[TopicPartition], group: LedGroup
) -> dict[TopicPartition, SparklogError]:
    """Return a retriable error for each of these partitions that the cluster has, because its leader does not know it
    yet."""
    leaders = cluster.leaders(partitions, timeout_ms=group.timeout_ms)
    return {
        tp: LeaderNotAvailableError(
            f"the broker at {group.leader}, the leader of {tp}, does not know the partition yet"
        )
        for tp in partitions
        if not isinstance(leaders[tp], UnknownTopicOrPartitionError)
    }
