"""The users with passwords that this broker knows, and the secret with which it answers for others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from sparklog.errors import InvalidConfigError
from sparklog.security.scram import CredentialLookup
from sparklog.security.users import Credentials, decode_user

log = logging.getLogger(__name__)


class Users:
    """Changed on the event loop's thread; `lookup`'s functions may be called from any."""

    def __init__(self, secret: bytes, initial: Mapping[str, Credentials] | None = None) -> None:
        """`secret`: for the answers to unknown names; see `scram.unknown_user_credential`. `initial`: users that count
        as long as there are no others of their names."""
        self._initial = initial or {}
        self.secret = secret
        self.on_removed: Callable[[str], None] = lambda name: None
        self._users: dict[str, Credentials] = {}

    def follow(self, changes: Mapping[str, bytes | None]) -> None:
        """Takes over changed records of users, by their names; None: the user is gone."""
        users = dict(self._users)
        removed = []
        for name, record in changes.items():
            try:
                credentials = {} if record is None else decode_user(record)
            except InvalidConfigError as e:
                log.error("user %r cannot log in: %s", name, e)  # noqa: TRY400 - the cause could quote the record
                credentials = {}
            if credentials:
                users[name] = credentials
            elif users.pop(name, None) is not None:
                removed.append(name)
        self._users = users  # in one step: other threads read it
        for name in removed:
            self.on_removed(name)

    def follow_secrets(self, changes: Mapping[str, bytes | None]) -> None:
        """Takes over the cluster's secret for unknown names."""
        secret = changes.get(UNKNOWN_USERS)
        if secret:
            self.secret = secret

    def lookup(self, mechanism: str) -> CredentialLookup:
        """Finds credentials of a mechanism by the user's name."""
        return lambda name: (self._users.get(name) or self._initial.get(name, {})).get(mechanism)

    def knows(self, name: str) -> bool:
        return name in self._users or name in self._initial

    def all(self) -> Mapping[str, Credentials]:
        """By name."""
        return self._users


SECRET_BYTES = 32
UNKNOWN_USERS = "unknown-users"
"""Key of the secret among the records of secrets."""
