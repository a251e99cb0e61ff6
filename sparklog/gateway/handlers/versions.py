"""API_VERSIONS."""

from __future__ import annotations

from sparklog.gateway.session import Served, Session
from sparklog.gateway.wire.codec import Body
from sparklog.gateway.wire.errors import Kafka

UNKNOWN_VERSION = -1


async def api_versions(session: Session, request: Body, version: int) -> Body:
    """A client with an unknown version gets the versions in the oldest form, and asks again."""
    return {
        "error_code": Kafka.UNSUPPORTED_VERSION if version == UNKNOWN_VERSION else Kafka.NONE,
        "api_keys": [_range(served) for _, served in sorted(session.apis.items())],
        "finalized_features_epoch": 0,
    }


def _range(served: Served) -> Body:
    api = served.api
    return {"api_key": api.key, "min_version": api.advertised_from, "max_version": api.last}
