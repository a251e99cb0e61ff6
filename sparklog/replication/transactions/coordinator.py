"""The coordinator of the transactional ids of one partition of `__transaction_state`: a pure state machine.

The shell creates a Coordinator, passes every record of the partition to `replay`, calls `loaded`, and then passes
requests to `handle`. It carries out the effects of each call as `model` says: first the records, then the actions. A
request that must wait for the end of a transaction is kept here, and handled again when the transaction is complete.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from sparklog.errors import ConcurrentTransactionsError, SparklogError
from sparklog.protocol.transaction_messages import TransactionSummary
from sparklog.replication.transactions import records
from sparklog.replication.transactions.model import (
    Abort,
    Answer,
    Effects,
    EndShared,
    IdReserve,
    Join,
    Marker,
    Refuse,
    Renew,
    Request,
    Safeguards,
    TransactionLimits,
    WriteMarkers,
    is_shared,
)
from sparklog.replication.transactions.plain import PlainTransactions
from sparklog.replication.transactions.shared import SharedTransactions
from sparklog.types import ProducerIdAndEpoch, TopicPartition

WAITING_MAX = 10_000
"""Largest number of requests that wait for the end of one transaction: a large job has about as many tasks."""
EXPIRY_INTERVAL_MS = 60_000


class Coordinator:
    """The coordinator's state machine for one partition of `__transaction_state`."""

    def __init__(
        self, ids: IdReserve, limits: TransactionLimits | None = None, safeguards: Safeguards | None = None
    ) -> None:
        self._safeguards = safeguards if safeguards is not None else Safeguards()
        rules = ids, limits if limits is not None else TransactionLimits(), self._safeguards
        self._plain = PlainTransactions(*rules)
        self._shared = SharedTransactions(*rules)
        self._missing: dict[str, set[Marker]] = {}
        self._waiting: dict[str, list[tuple[Request, Hashable]]] = {}
        self._expire_at_ms = 0

    # -- loading

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply the next record of the partition. Raises LogCorruptError."""
        kind, parts, state = records.decode(key, value)
        transactional_id = str(parts[0])
        if kind == records.PLAIN:
            assert state is None or isinstance(state, records.PlainValue)
            self._plain.replay(transactional_id, state)
        elif kind == records.SHARED:
            assert state is None or isinstance(state, records.SharedValue)
            self._shared.replay(transactional_id, state)
        else:
            assert state is None or isinstance(state, records.ParticipantValue)
            self._shared.replay_participant(transactional_id, int(parts[1]), state)

    def loaded(self, now_ms: int, *, from_elsewhere: bool = False) -> Effects:
        """Continue the decided transactions after the replay of all records. `from_elsewhere`: True if another broker
        can have written the records. That broker's clock can differ, so the timeouts of open transactions begin again.
        """
        self._shared.replayed_all(now_ms)
        if from_elsewhere:
            self._plain.time_again(now_ms)
            self._shared.time_again(now_ms)
        effects = Effects(decided=[*self._plain.prepared_ids(), *self._shared.prepared_ids()])
        self._finish(effects, now_ms)
        return effects

    # -- events

    def handle(self, request: Request, token: Hashable, now_ms: int) -> Effects:
        """Handle a request. Exactly one Answer or Refuse with `token` follows, in these effects or later ones."""
        effects = Effects()
        self._handle(request, token, now_ms, effects)
        self._finish(effects, now_ms)
        return effects

    def markers_written(self, transactional_id: str, markers: Iterable[Marker], now_ms: int) -> Effects:
        """Note that these markers are written, or that their partitions were deleted. After the last marker the
        transaction is complete, and requests that waited for its end are handled."""
        effects = Effects()
        missing = self._missing.get(transactional_id)
        if missing is not None:
            missing.difference_update(markers)
            if not missing:
                self._complete(transactional_id, now_ms, effects)
                self._finish(effects, now_ms)
        return effects

    def tick(self, now_ms: int, expiry_ms: int | None = None) -> Effects:
        """Abort transactions that exceed their timeout, and remove ids that are unused for their expiration time.
        `expiry_ms`: the present time of the expiry clock, which cannot jump; None for `now_ms`."""
        effects = Effects()
        self._plain.time_out(now_ms, effects)
        self._shared.time_out(now_ms, effects)
        if now_ms >= self._expire_at_ms:
            self._expire_at_ms = now_ms + EXPIRY_INTERVAL_MS
            self._plain.expire(now_ms if expiry_ms is None else expiry_ms, effects)
            self._shared.expire(now_ms if expiry_ms is None else expiry_ms, effects)
        self._finish(effects, now_ms)
        return effects

    def give_up(self, token: Hashable) -> None:
        """Drop the waiting request with `token`, because its client has gone."""
        for transactional_id, waiting in list(self._waiting.items()):
            remaining = [w for w in waiting if w[1] != token]
            if len(remaining) < len(waiting):
                self._waiting[transactional_id] = remaining

    # -- present state

    def stale(self, transactional_id: str, identity: ProducerIdAndEpoch) -> SparklogError:
        """Return the error for a producer after a partition has refused a batch of `identity` as too old."""
        return self._rules(transactional_id).stale(transactional_id, identity)

    @property
    def is_empty(self) -> bool:
        """True if the coordinator knows no transactional id."""
        return not self._plain.ids() and not self._shared.ids()

    def ids(self) -> list[str]:
        """Return all transactional ids, unsorted."""
        return [*self._plain.ids(), *self._shared.ids()]

    def summary(self, transactional_id: str) -> TransactionSummary:
        """Return the summary of an id. Raises InvalidProducerIdMappingError for an unknown id."""
        return self._rules(transactional_id).summary(transactional_id)

    def partitions(self, transactional_id: str) -> list[tuple[int, TopicPartition]]:
        """Return (producer id, partition) for each partition of the id's open transaction. Raises
        InvalidProducerIdMappingError.
        """
        return self._rules(transactional_id).partitions(transactional_id)

    def last_committed(self, transactional_id: str) -> tuple[int, str]:
        """Return the last committed version of a shared id, and its input; (-1, "") if there is none, or the id is
        plain. Raises InvalidProducerIdMappingError for an unknown shared id."""
        return self._shared.last_committed(transactional_id) if is_shared(transactional_id) else (-1, "")

    def producers(self) -> Iterator[tuple[int, str, set[TopicPartition]]]:
        """Yield (producer id, transactional id, partitions of the open transaction) for each producer."""
        yield from self._plain.producers()
        yield from self._shared.producers()

    def numbers(self) -> Iterator[int]:
        """Yield all producer ids and fencing tokens in the records. They must not be issued again."""
        yield from self._plain.numbers()
        yield from self._shared.numbers()

    # -- dispatch

    def _rules(self, transactional_id: str) -> PlainTransactions | SharedTransactions:
        return self._shared if is_shared(transactional_id) else self._plain

    def _handle(self, request: Request, token: Hashable, now_ms: int, effects: Effects) -> None:
        waiting = self._waiting.get(request.transactional_id, [])
        try:
            if isinstance(request, Join | EndShared | Renew) or is_shared(request.transactional_id):
                result = self._shared.handle(request, now_ms, effects)  # type: ignore[arg-type]
            else:
                result = self._plain.handle(request, now_ms, effects)
            if result is None and len(waiting) >= WAITING_MAX:
                raise ConcurrentTransactionsError(
                    f"{len(waiting)} requests wait for the previous transaction; try again"
                )
        except SparklogError as e:
            effects.actions.append(Refuse(token, e))
            return
        if result is not None:
            effects.actions.append(Answer(token, result))
            return
        if isinstance(request, Abort):
            request = request._replace(
                aborted=len(self._rules(request.transactional_id).markers(request.transactional_id))
            )
        self._waiting.setdefault(request.transactional_id, []).append((request, token))

    def _finish(self, effects: Effects, now_ms: int) -> None:
        """Add the markers of the transactions in `effects.decided`. Without markers a transaction is complete."""
        while effects.decided:
            transactional_id = effects.decided.pop(0)
            markers = tuple(self._rules(transactional_id).markers(transactional_id))
            self._missing[transactional_id] = set(markers)
            if markers:
                started_ms = self._rules(transactional_id).started_ms(transactional_id)
                effects.actions.append(WriteMarkers(transactional_id, markers, started_ms))
            if not markers or not self._safeguards.markers_before_completion:
                self._complete(transactional_id, now_ms, effects)

    def _complete(self, transactional_id: str, now_ms: int, effects: Effects) -> None:
        del self._missing[transactional_id]
        self._rules(transactional_id).complete(transactional_id, now_ms, effects)
        effects.completed.append(transactional_id)
        for request, token in self._waiting.pop(transactional_id, []):
            self._handle(request, token, now_ms, effects)
