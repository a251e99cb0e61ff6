"""METADATA, asked for page by page, as one answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparklog.client.net.paging import pages
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse


def whole_metadata(
    ask: Callable[[MetadataRequest], MetadataResponse],
    topics: Sequence[str] | None,
    *,
    details: bool = True,
    to_write: bool = False,
) -> MetadataResponse:
    """Return one answer with the topics of all pages; the schemas of one topic can span pages.

    `topics` None: all topics. `details`: True asks for schemas and partitions, too. `to_write`: see `Cluster.metadata`.
    Raises as `pages`, and the errors of `ask`.
    """
    request = MetadataRequest(
        None if topics is None else list(dict.fromkeys(topics)),
        paged=True,
        with_schemas=details,
        with_partitions=details,
        create_missing=to_write,
    )

    def following(page: MetadataResponse) -> dict[str, object]:
        return {"after": page.topics[-1].name, "schemas_from": page.schemas_from} if page.topics else {}

    response: MetadataResponse | None = None
    for page in pages(ask, request, following):
        if response is None:
            response = page
            continue
        begun = response.topics[-1]
        for topic in page.topics:
            if topic.name == begun.name and topic.topic_id == begun.topic_id:
                begun.schemas += topic.schemas
            else:
                response.topics.append(topic)
    assert response is not None
    return response
