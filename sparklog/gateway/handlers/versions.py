"""The API API_VERSIONS."""

from __future__ import annotations

from sparklog.gateway.session import ServedApi, Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka

UNKNOWN_VERSION = -1
FEATURES = (("transaction.version", 2),)
"""Kafka features that clients can use, with their levels. In transactions of version 2, each end raises the producer's
epoch."""


async def api_versions(session: Session, request: requests.ApiVersions, version: int) -> responses.ApiVersions:
    """Answer with the served versions. A client whose request has an unknown version gets the answer in version 0 with
    an error, and asks again."""
    return {
        "error_code": Kafka.UNSUPPORTED_VERSION if version == UNKNOWN_VERSION else Kafka.NONE,
        "api_keys": [_range(served) for _, served in sorted(session.apis.items())],
        "supported_features": [{"name": name, "min_version": 0, "max_version": level} for name, level in FEATURES],
        "finalized_features_epoch": 0,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level} for name, level in FEATURES
        ],
    }


def _range(served: ServedApi) -> responses.ApiVersionsApiKey:
    api = served.api
    return {"api_key": api.key, "min_version": api.advertised_from, "max_version": api.last}
