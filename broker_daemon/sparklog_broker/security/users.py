"""The broker's users with passwords, and the secret for its replies to unknown names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from sparklog.errors import InvalidConfigError
from sparklog.security.scram import CredentialLookup, UnknownUsers
from sparklog.security.users import Credentials, decode_user, encode_user

log = logging.getLogger(__name__)


class Users:
    """The users. Changed on the event loop's thread; functions that `lookup` returns are for any thread."""

    def __init__(self, secret: bytes, initial: Mapping[str, Credentials] | None = None) -> None:
        """`secret`: makes the replies to unknown names look like replies to users; see `scram.UnknownUsers`. `initial`:
        users that exist unless records with their names replace them.
        """
        self._initial = initial or {}
        self.secret = secret
        self.on_removed: Callable[[str], None] = lambda name: None
        self._records: dict[str, Credentials] = {}
        """Credentials from records, by name. Empty credentials disable the name, even that of an initial user."""
        self._users: Mapping[str, Credentials] = self._initial
        self._unknown: dict[str, UnknownUsers] = {}
        """Credentials for unknown names, by mechanism; created at the first login after a change."""

    def follow(self, changes: Mapping[str, bytes | None]) -> None:
        """Apply changed records of users, by name; None for a deleted record."""
        for name, record in changes.items():
            try:
                if record is None:
                    self._records.pop(name, None)
                else:
                    self._records[name] = decode_user(record)
            except InvalidConfigError as e:
                log.error("user %r cannot log in: %s", name, e)  # noqa: TRY400 - the cause could quote the record
                self._records[name] = {}
        before = self._users
        users = {name: credentials for name, credentials in {**self._initial, **self._records}.items() if credentials}
        self._users = users  # one assignment, because other threads read it
        self._unknown = {}
        for name in changes:
            if name in before and name not in users:
                self.on_removed(name)

    def record_without(self, name: str) -> bytes | None:
        """Return the record of a removed user: None, or empty credentials for an initial user, who would exist without
        a record.
        """
        return encode_user({}) if name in self._initial else None

    def follow_secrets(self, changes: Mapping[str, bytes | None]) -> None:
        """Apply the cluster's secret for unknown names."""
        secret = changes.get(UNKNOWN_USERS)
        if secret:
            self.secret = secret
            self._unknown = {}

    def lookup(self, mechanism: str) -> CredentialLookup:
        """Return a function that returns a user's credentials for a mechanism, by name."""
        return lambda name: self._users.get(name, {}).get(mechanism)

    def unknown(self, mechanism: str) -> UnknownUsers:
        """Return made-up credentials for names without a user of the mechanism."""
        users = self._unknown.get(mechanism)
        if users is None:
            credentials = (c[mechanism] for c in self._users.values() if mechanism in c)
            users = self._unknown[mechanism] = UnknownUsers(mechanism, self.secret, credentials)
        return users

    def knows(self, name: str) -> bool:
        return name in self._users

    def all(self) -> Mapping[str, Credentials]:
        """Return all users by name, including initial users."""
        return self._users


SECRET_BYTES = 32
UNKNOWN_USERS = "unknown-users"
"""Key of this secret among the records of secrets."""
