"""The producer's settings, and the dependencies between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparklog.client.producer.sequences import BATCHES_IN_FLIGHT_MAX
from sparklog.errors import InvalidConfigError
from sparklog.settings import Scope, from_parameters
from sparklog.types import SHARED_PREFIX

_ACKS, _IDEMPOTENCE, _IN_FLIGHT = "acks", "enable.idempotence", "max.in.flight.requests.per.connection"
_TRANSACTIONAL_ID = "transactional.id"


def producer_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings under their dotted names, from Python parameters. Idempotence is off if acks is not all, as
    in Kafka. Raises InvalidConfigError, also for idempotence that is requested together with other acks."""
    acks = "all" if str(values.get("acks")) == "-1" else values.get("acks")
    config: dict[str, Any] = from_parameters(Scope.PRODUCER, {**values, "acks": acks})
    if config[_ACKS] != "all":
        if values.get("enable_idempotence") is not None and config[_IDEMPOTENCE]:
            raise InvalidConfigError(f"{_IDEMPOTENCE} needs {_ACKS}=all, not {config[_ACKS]}: leave one of them out")
        config[_IDEMPOTENCE] = False
    if config[_TRANSACTIONAL_ID]:
        if not config[_IDEMPOTENCE]:
            raise InvalidConfigError(f"{_TRANSACTIONAL_ID} needs {_ACKS}=all and {_IDEMPOTENCE}=true")
        if config[_TRANSACTIONAL_ID].startswith(SHARED_PREFIX):
            raise InvalidConfigError(
                f"{_TRANSACTIONAL_ID} = {config[_TRANSACTIONAL_ID]!r}: names that begin with {SHARED_PREFIX!r} are "
                "reserved for shared transactions; use another name"
            )
    if config[_IDEMPOTENCE] and config[_IN_FLIGHT] > BATCHES_IN_FLIGHT_MAX:
        raise InvalidConfigError(
            f"{_IN_FLIGHT} = {config[_IN_FLIGHT]}: at most {BATCHES_IN_FLIGHT_MAX} with {_IDEMPOTENCE}, because the "
            f"broker remembers that many; lower it, or set {_IDEMPOTENCE}=false"
        )
    return config
