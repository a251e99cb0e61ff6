"""The known coordinators of groups and transactional ids, each with the broker that has named it.

A broker that is cut off continues to name itself, or a coordinator that has been replaced. A broker that has named a
wrong coordinator, or a coordinator that does not become ready, is therefore asked last for SUSPECT_FOR_S. Pure; the
caller has a lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.coordinator_key import CoordinatorKey

SUSPECT_FOR_S = 30.0
"""Time in s for which a doubted broker comes last in the order."""
KEYS_MAX = 1_000
DOUBTED_MAX = 1_000


class CoordinatorAnswer(NamedTuple):
    """The address of a coordinator (None: any broker), and the broker that has named it (None: no broker can name
    coordinators)."""

    endpoint: Endpoint | None
    informant: Endpoint | None


class RememberedCoordinators:
    """The latest answer about each key, of KEYS_MAX keys."""

    def __init__(self) -> None:
        self._answers: OrderedDict[CoordinatorKey, CoordinatorAnswer] = OrderedDict()
        self._doubted_at: OrderedDict[Endpoint, float] = OrderedDict()

    def get(self, key: CoordinatorKey) -> CoordinatorAnswer | None:
        """Return the known coordinator; None if it has to be looked up."""
        return self._answers.get(key)

    def remember(self, key: CoordinatorKey, answer: CoordinatorAnswer) -> None:
        """Store the result of a look-up."""
        self._answers[key] = answer
        self._answers.move_to_end(key)
        while len(self._answers) > KEYS_MAX:
            self._answers.popitem(last=False)

    def forget(self, key: CoordinatorKey, answer: CoordinatorAnswer, now: float, *, unready: bool) -> None:
        """Drop a wrong coordinator, and put the broker that has named it last in the order.

        `unready`: True if the coordinator cannot do its work; then it comes last itself, too. A result that was noted
        after `answer` stays.
        """
        if self._answers.get(key) == answer:
            del self._answers[key]
        self.doubt(answer.informant, now)
        if unready:
            self.doubt(answer.endpoint, now)

    def doubt(self, informant: Endpoint | None, now: float) -> None:
        """Put a broker last in the order for SUSPECT_FOR_S, because it did not know a coordinator or named a wrong one.
        None: no broker."""
        if informant is None:
            return
        self._doubted_at[informant] = now
        self._doubted_at.move_to_end(informant)
        while len(self._doubted_at) > DOUBTED_MAX:
            self._doubted_at.popitem(last=False)

    def order(self, brokers: Iterable[Endpoint], now: float) -> list[Endpoint]:
        """Return the brokers in the order in which they are asked: the given order, but with doubted brokers at the
        end, the latest doubted last."""
        since = now - SUSPECT_FOR_S
        return sorted(brokers, key=lambda e: max(self._doubted_at.get(e, since), since))
