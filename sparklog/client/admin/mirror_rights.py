"""The rights that a mirror's user lacks at the source, before a topic is created here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from sparklog.errors import GroupAuthorizationFailedError, SparklogError, TopicAuthorizationFailedError
from sparklog.mirror.definition import MirrorDefinition
from sparklog.mirror.rules import NO_EPOCH, SourceBounds
from sparklog.mirror.source import MirrorSource, SourceTopic
from sparklog.types import TopicPartition

NAMED_MAX = 10
_REFUSALS = (TopicAuthorizationFailedError, GroupAuthorizationFailedError)
_LITERAL = re.compile(r"[A-Za-z0-9._-]+")


def missing_rights(source: MirrorSource, topics: Mapping[str, SourceTopic], names: Iterable[str]) -> dict[str, str]:
    """Return the refusals of the source by topic, for each of `names`: of offsets, settings and records. Records are
    asked for behind the last one, so that none is sent. Raises errors of the source's metadata."""
    tps = {TopicPartition(name, 0) for name in names if name in topics}
    refusals = {
        name: refusal for name, one in source.settings([tp.topic for tp in tps]).items() if (refusal := _text(one))
    }
    by_leader: dict[object, dict[TopicPartition, tuple[int, int, int]]] = {}
    for tp, bounds in source.bounds(topics, sorted(tps)).items():
        if isinstance(bounds, SourceBounds):
            epoch = topics[tp.topic].partitions[0].leader_epoch
            by_leader.setdefault(source.leader(topics, tp), {})[tp] = (bounds.stable, epoch, NO_EPOCH)
        elif refusal := _text(bounds):
            refusals.setdefault(tp.topic, refusal)
    for leader, positions in by_leader.items():
        try:
            fetched = source.fetch(leader, positions, wait_ms=0) if leader is not None else {}
        except SparklogError:
            continue  # the leader is away: its answer will tell the worker
        for tp, part in fetched.items():
            if refusal := _text(part.error):
                refusals.setdefault(tp.topic, refusal)
    return refusals


def hidden_names(
    source: MirrorSource, definition: MirrorDefinition, topics: Mapping[str, SourceTopic]
) -> dict[str, str]:
    """Return the refusals of topics and groups that the definition names without an expression. Others that the user
    must not describe cannot be seen. Raises errors of the source."""
    literal = [name for name in _literals(definition.topics) if name not in topics]
    return hidden_topics(source, literal) | hidden_groups(source, definition)


def hidden_topics(source: MirrorSource, names: Sequence[str]) -> dict[str, str]:
    """Return the refusals of those topics that the mirror's user must not describe. Raises errors of the source."""
    return {name: f"Describe on topic {name!r} is not allowed" for name in sorted(source.hidden_topics(names))}


def hidden_groups(source: MirrorSource, definition: MirrorDefinition) -> dict[str, str]:
    """Return the refusals of groups that the definition names without an expression."""
    refusals = {}
    for group_id in _literals(definition.groups):
        try:
            source.group_offsets(group_id)
        except SparklogError as e:
            if refusal := _text(e):
                refusals[f"group {group_id}"] = refusal
    return refusals


def require_rights(
    source: MirrorSource, definition: MirrorDefinition, topics: Mapping[str, SourceTopic], names: Iterable[str]
) -> None:
    """Raise TopicAuthorizationFailedError that names each right which the mirror's user lacks."""
    refusals = missing_rights(source, topics, names) | hidden_names(source, definition, topics)
    if refusals:
        more = f"; and {len(refusals) - NAMED_MAX} more" if len(refusals) > NAMED_MAX else ""
        raise TopicAuthorizationFailedError(
            f"the mirror's user lacks rights at {definition.source}: {'; '.join(list(refusals.values())[:NAMED_MAX])}{more}. "
            "Allow them there, or leave the topics and groups out; nothing was created"
        )


def _text(answer: object) -> str:
    """Return the text of a refusal; "" for another answer."""
    return str(answer) if isinstance(answer, _REFUSALS) else ""


def _literals(patterns: str) -> list[str]:
    return [part for part in map(str.strip, patterns.split(",")) if _LITERAL.fullmatch(part)]
