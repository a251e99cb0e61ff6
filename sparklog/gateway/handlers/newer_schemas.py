"""The subjects of topics that have got newer schemas."""

from __future__ import annotations

from collections.abc import Mapping

from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import SparklogError
from sparklog.gateway.records.typed import is_framed
from sparklog.gateway.session import Session
from sparklog.kafka.values.schemas import value_subject


async def topics_with_newer_schemas(session: Session, topics: Mapping[str, TopicInfo]) -> set[str]:
    """Return the names of those topics whose subjects have other newest schemas than before. A topic whose subject
    cannot be looked up counts as unchanged, so that its refusal stands."""
    changed = set()
    for name, topic in topics.items():
        if is_framed(topic):
            try:
                if await session.gateway.schemas.has_changed(await session.broker(), value_subject(name)):
                    changed.add(name)
            except SparklogError:
                continue
    return changed
