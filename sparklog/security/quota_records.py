"""Quotas as security records: one for each entity.

A record's key is the SHA-256 of its entity, so that names may be long; the value is a JSON object: `user`, `client_id`
and `ip` (absent: not named; "": the default), and `quotas` by their keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from sparklog.errors import InvalidConfigError
from sparklog.security.quotas import Entity, QuotaKey, QuotaTable, check_entity, check_rates
from sparklog.security.records import RecordId, RecordKind

CLIENT_ID_CHARS_MAX = 1_024

Quotas = Mapping[QuotaKey, float]


def quota_record(entity: Entity, quotas: Quotas) -> tuple[RecordId, bytes | None]:
    """Return the record of the entity's quotas; without any there is none. Raises InvalidConfigError."""
    any_key = QuotaKey.PRODUCER_BYTE_RATE if entity.ip is None else QuotaKey.CONNECTION_CREATION_RATE
    QuotaTable({entity: quotas or {any_key: 1.0}})
    if quotas:  # of another name they can still be taken away
        check_entity(entity)
    check_rates(quotas)
    named = {name: value for name, value in entity._asdict().items() if value is not None}
    identity = json.dumps(named, sort_keys=True, ensure_ascii=False).encode()
    key = RecordId(RecordKind.QUOTAS, hashlib.sha256(identity).hexdigest())
    if not quotas:
        return key, None
    return key, json.dumps({**named, "quotas": {str(k): v for k, v in sorted(quotas.items())}}).encode()


def quotas_of(value: bytes) -> tuple[Entity, dict[QuotaKey, float]]:
    """Return the content of a record, without keys of later versions. Raises InvalidConfigError."""
    try:
        found = json.loads(value)
        entity = Entity(found.get("user"), found.get("client_id"), found.get("ip"))
        quotas = {QuotaKey(k): float(v) for k, v in found["quotas"].items() if k in set(QuotaKey)}
        QuotaTable({entity: quotas})
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise InvalidConfigError("the stored record is not a quota") from e
    return entity, quotas


def parse_key(text: str) -> QuotaKey:
    """Parse the key of a quota. Raises InvalidConfigError."""
    try:
        return QuotaKey(text)
    except ValueError as e:
        raise InvalidConfigError(f"{text[:64]!r} is not a quota: use one of {', '.join(QuotaKey)}") from e
