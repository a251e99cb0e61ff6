"""The keys that have a coordinator: groups and transactional ids."""

from __future__ import annotations

from typing import NamedTuple

from sparklog.types import shared_transactional_id

GROUP, TRANSACTION = 0, 1


class CoordinatorKey(NamedTuple):
    """The key of FIND_COORDINATOR."""

    key: str
    key_type: int


def group_key(group_id: str) -> CoordinatorKey:
    """Return the key of a group."""
    return CoordinatorKey(group_id, GROUP)


def transaction_key(transactional_id: str) -> CoordinatorKey:
    """Return the key of a transactional id."""
    return CoordinatorKey(transactional_id, TRANSACTION)


def application_key(app_id: str) -> CoordinatorKey:
    """Return the key of an application with shared transactions."""
    return transaction_key(shared_transactional_id(app_id))
