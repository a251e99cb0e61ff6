"""Quotas as security records: one record for each entity.

A record's key is the SHA-256 of its entity, so that names can be long. The value is a JSON object. It has `user`,
`client_id` and `ip`, as far as the entity has them ("" is the default), and `quotas` by their keys.
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
    """Return the id and the value of the record with the entity's quotas. The value is None if `quotas` is empty.
    Raises InvalidConfigError."""
    any_key = QuotaKey.PRODUCER_BYTE_RATE if entity.ip is None else QuotaKey.CONNECTION_CREATION_RATE
    QuotaTable({entity: quotas or {any_key: 1.0}})
    if quotas:  # quotas of an invalid name can still be removed
        check_entity(entity)
    check_rates(quotas)
    named = {name: value for name, value in entity._asdict().items() if value is not None}
    identity = json.dumps(named, sort_keys=True, ensure_ascii=False).encode()
    key = RecordId(RecordKind.QUOTAS, hashlib.sha256(identity).hexdigest())
    if not quotas:
        return key, None
    return key, json.dumps({**named, "quotas": {str(k): v for k, v in sorted(quotas.items())}}).encode()


def quotas_of(value: bytes) -> tuple[Entity, dict[QuotaKey, float]]:
    """Return the entity and the quotas of a record. Unknown keys, from later versions, are left out. Raises
    InvalidConfigError."""
    try:
        fields = json.loads(value)
        entity = Entity(fields.get("user"), fields.get("client_id"), fields.get("ip"))
        quotas = {QuotaKey(k): float(v) for k, v in fields["quotas"].items() if k in set(QuotaKey)}
        QuotaTable({entity: quotas})
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise InvalidConfigError("the stored record is not a quota") from e
    return entity, quotas


def parse_key(text: str) -> QuotaKey:
    """Return the quota key with this name. Raises InvalidConfigError for an unknown name."""
    try:
        return QuotaKey(text)
    except ValueError as e:
        raise InvalidConfigError(f"{text[:64]!r} is not a quota: use one of {', '.join(QuotaKey)}") from e
