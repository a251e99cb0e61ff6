"""Sessions of users who have logged in to a secured cluster. The console sends a user's requests as that user.

The console keeps the user's password or token in memory, because each new connection authenticates again. Brokers
check every right.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from sparklog.environment.clock import MachineClock
from sparklog.errors import InvalidConfigError
from sparklog.security.client_security import ClientSecurity, SecuritySettings, TokenEndpoint
from sparklog.security.sasl import OAUTHBEARER
from sparklog.security.secrets import Secret

SESSIONS_MAX = 32
"""Largest number of sessions. Each session has connections, and its groups are measured."""
SESSIONS_OF_A_USER_MAX = 4
"""Largest number of sessions of one user. The next login ends the user's oldest session."""
IDLE_S = 30 * 60.0
"""A session ends after this time without a request of its user. Automatic updates of a page do not count."""
LIFETIME_S = 12 * 3600.0
"""A session ends this long after the login."""
NAME_CHARS_MAX = 256
SECRET_CHARS_MAX = 16_384

_USER_SETTINGS = (
    "sasl.username",
    "sasl.password",
    "sasl.jaas.config",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.token.endpoint.url",
)
_PLACEHOLDER = "user"

T = TypeVar("T")


def login_security(settings: SecuritySettings | None) -> ClientSecurity:
    """Return the connection settings of logins, with a placeholder in place of the user.

    The mechanism is SCRAM-SHA-512 unless `settings` has another one. Raises InvalidConfigError if `settings` have a
    user, or do not use SASL.
    """
    values = dict(settings.items()) if settings else {}
    named = next((name for name in _USER_SETTINGS if name in values), None)
    if named is not None:
        raise InvalidConfigError(f"{named} is set, but with --login each browser's user gives it: leave {named} out")
    mechanism = values.setdefault("sasl.mechanism", "SCRAM-SHA-512")
    if mechanism == OAUTHBEARER:
        values["sasl.oauthbearer.token.endpoint.url"] = f"file:///{_PLACEHOLDER}"
    else:
        values |= {"sasl.username": _PLACEHOLDER, "sasl.password": _PLACEHOLDER}
    return SecuritySettings(values).resolve()


def takes_token(template: ClientSecurity) -> bool:
    """True if users log in with a token; False if they log in with a name and a password."""
    return template.mechanism == OAUTHBEARER


def security_as(template: ClientSecurity, name: str, secret: str) -> ClientSecurity:
    """Return the connection settings of a user. `secret` is the password or the token.

    References in `secret` such as ${file:/path} are not resolved: users must not read files of the console's machine.
    """
    if takes_token(template):
        return dataclasses.replace(template, token_endpoint=TokenEndpoint("", client_secret=Secret(secret)))
    return dataclasses.replace(template, username=name, password=Secret(secret))


@dataclass
class _Session(Generic[T]):
    user: Hashable
    content: T
    begun_s: float
    used_s: float


class Sessions(Generic[T]):
    """The sessions of logged-in browsers, by the keys in their cookies. Not thread-safe."""

    def __init__(self, clock: MachineClock) -> None:
        self._clock = clock
        self._sessions: dict[str, _Session[T]] = {}

    def find(self, key: str, *, is_use: bool = True) -> T | None:
        """Return the content of a session; None if it does not exist or has ended.

        `is_use` False is for the automatic update of a page, which does not prolong the session.
        """
        self._drop_ended()
        session = self._sessions.get(key)
        if session is None:
            return None
        if is_use:
            session.used_s = self._clock.monotonic_s()
        return session.content

    def begin(self, key: str, user: Hashable, content: T) -> bool:
        """Begin a session. If the user has SESSIONS_OF_A_USER_MAX sessions, the oldest one ends.

        Returns False, without a session, if all users together have SESSIONS_MAX sessions.
        """
        self._drop_ended()
        own = [k for k, s in self._sessions.items() if s.user == user]
        if len(own) >= SESSIONS_OF_A_USER_MAX:
            self.end(own[0])
        if len(self._sessions) >= SESSIONS_MAX:
            return False
        now_s = self._clock.monotonic_s()
        self._sessions[key] = _Session(user, content, now_s, now_s)
        return True

    def end(self, key: str) -> None:
        """End a session. A second call does nothing."""
        self._sessions.pop(key, None)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the contents of the open sessions."""
        self._drop_ended()
        return iter([s.content for s in self._sessions.values()])

    def _drop_ended(self) -> None:
        now_s = self._clock.monotonic_s()
        ended = [
            key for key, s in self._sessions.items() if now_s - s.used_s >= IDLE_S or now_s - s.begun_s >= LIFETIME_S
        ]
        for key in ended:
            self.end(key)
