"""Topics that requests name by their ids (KIP-516).

A topic that is deleted and created again under its name gets another id. The gateway replaces each id by the topic's
name, and sends the broker both: the broker refuses a partition whose topic has another id now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast
from uuid import UUID

from sparklog.gateway.handlers.names import UNNAMED
from sparklog.gateway.session import Session


async def name_topics(session: Session, topics: Iterable[Mapping[str, object]], field: str = "name") -> None:
    """Write the name of each topic that has an id into its `field`, UNNAMED for an id of no topic. Raises the broker's
    errors."""
    by_id = [cast("dict[str, Any]", topic) for topic in topics if "topic_id" in topic]
    if not by_id:
        return
    ids = {topic["topic_id"] for topic in by_id} - {None}
    names = await session.topic_names.names_of(await session.broker(), ids)
    for topic in by_id:
        topic[field] = names.get(topic["topic_id"], UNNAMED)


def id_text(topic_id: UUID | None) -> str:
    """Return a topic's id as the broker writes it; "" for a topic that is named without id."""
    return "" if topic_id is None else topic_id.hex
