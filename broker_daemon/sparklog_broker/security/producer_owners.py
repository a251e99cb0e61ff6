"""The owners of producer ids: a client is allowed to write only with its own ids.

A transactional batch belongs to the transactional id of its request, for which the peer has permission. Before a
producer's first batch in a partition, the coordinator confirms that the producer id belongs to the transactional id.
Later batches are not verified by the coordinator, so a request with another transactional id, or none, could write into
an open transaction. `ProducerOwners.judge` therefore remembers the confirmed pairs.

A producer id without a transactional id belongs forever, and on every broker, to the principal that received it: the id
itself proves it (`sparklog.security.owned_ids`). The secret for these proofs is created once, before the first id. It
is a security record, so that later leaders have it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

from sparklog.errors import (
    CoordinatorLoadingError,
    CorruptBatchError,
    InvalidProducerIdMappingError,
    SparklogError,
    TransactionalIdAuthorizationFailedError,
)
from sparklog.format.batch import ATTRIBUTE_TRANSACTIONAL, BatchHeader, iterate_batches
from sparklog.protocol.cluster_messages import SecurityRecordChange
from sparklog.security.owned_ids import SECRET_BYTES, SECRET_NAME, belongs_to, is_owned, owned_id
from sparklog.security.principals import Principal
from sparklog.security.records import RecordKind
from sparklog_broker.security.records import SecurityRecords

REMEMBERED_MAX = 100_000


class OwnedIds:
    """Issues and checks ids that prove their owner. Event-loop thread only, except for `is_of`."""

    def __init__(self, records: SecurityRecords, token_bytes: Callable[[int], bytes]) -> None:
        """`token_bytes(n)`: returns n random bytes."""
        self._token_bytes = token_bytes
        self._secret = b""
        records.watch(RecordKind.SECRETS, self._follow)

    def _follow(self, changes: Mapping[str, bytes | None]) -> None:
        self._secret = changes.get(SECRET_NAME) or self._secret

    def new_secret(self) -> SecurityRecordChange | None:
        """Return the record to store before the first id is issued; None if there is a secret. If several brokers store
        a secret, the first secret is kept."""
        if self._secret:
            return None
        return SecurityRecordChange(RecordKind.SECRETS, SECRET_NAME, self._token_bytes(SECRET_BYTES))

    def issue(self, number: int, principal: Principal) -> int:
        """Return the principal's owned id with this number. Raises CoordinatorLoadingError while there is no secret."""
        if not self._secret:
            raise CoordinatorLoadingError("the secret of producer ids is not loaded yet: try again")
        return owned_id(self._secret, number, principal)

    def is_of(self, producer_id: int, principal: Principal, *, if_unknown: bool) -> bool:
        """True if an owned id is the principal's; `if_unknown` while there is no secret. Callable on any thread."""
        return belongs_to(self._secret, producer_id, principal) if self._secret else if_unknown

    def judge(self, producer_id: int, principal: Principal) -> SparklogError | None:
        """Return the error for a producer id that does not belong to the principal; None if it does."""
        if is_owned(producer_id) and not self._secret:
            return CoordinatorLoadingError("the secret of producer ids is not loaded yet: try again")
        if is_owned(producer_id) and belongs_to(self._secret, producer_id, principal):
            return None
        return InvalidProducerIdMappingError(
            f"producer id {producer_id} was issued to another principal: request one with INIT_PRODUCER_ID, without a "
            "transactional id"
        )


class ProducerOwners:
    """Remembers confirmed pairs of transactional and producer ids. Event-loop thread only."""

    def __init__(self, ids: OwnedIds) -> None:
        self._ids = ids
        self._confirmed: OrderedDict[tuple[str, int], None] = OrderedDict()

    def confirmed(self, transactional_id: str, producer_id: int) -> None:
        """Record that the coordinator has confirmed the pair."""
        pair = transactional_id, producer_id
        self._confirmed[pair] = None
        self._confirmed.move_to_end(pair)
        if len(self._confirmed) > REMEMBERED_MAX:
            self._confirmed.popitem(last=False)

    def judge(
        self, principal: Principal, transactional_id: str | None, piece: memoryview
    ) -> SparklogError | BatchHeader | None:
        """Return the error for a piece that must not be appended, or the header of a batch that the coordinator must
        confirm first. None if the batches are the principal's, or unreadable: then the log returns a better error.
        """
        try:
            headers = [header for _, header in iterate_batches(piece, verify=False)]
        except CorruptBatchError:
            return None
        producers = {header.producer_id for header in headers}
        if len(producers) > 1:
            return InvalidProducerIdMappingError("batches of several producers for one partition")
        if not headers or headers[0].producer_id < 0:
            return None
        if not any(header.attributes & ATTRIBUTE_TRANSACTIONAL for header in headers):
            return self._ids.judge(headers[0].producer_id, principal)
        if transactional_id is None:
            return TransactionalIdAuthorizationFailedError("a transactional batch without a transactional id")
        return None if (transactional_id, headers[0].producer_id) in self._confirmed else headers[0]
