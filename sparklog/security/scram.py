"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), with the library `scramp`.

Of a password the server keeps only a salt, `StoredKey`, `ServerKey` and the number of iterations. Nobody can log in
with these. `scramp` parses, computes and compares in constant time. This module adds protection of the users:

- The server does not reveal which users exist. An unknown user gets a salt that is derived from the server's secret and
  the name, so it is the same at every attempt, like that of a known user. The exchange fails at the same message, with
  the same text. Salt sizes and iterations are distributed as among known users (`UnknownUsers`).
- The server creates a nonce for each exchange, and an exchange is used once, so a replayed message proves nothing.
- Both sides require at least 4,096 iterations, so no peer can make guessing cheaper.
- Channel binding (the mechanisms with -PLUS) is not offered, and a client that asks for it is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from msgspec import Struct

from sparklog.errors import InvalidConfigError, SaslAuthenticationFailedError
from sparklog.security.optional import require
from sparklog.security.principals import check_user_name, user
from sparklog.security.sasl import CREDENTIALS_WRONG, SCRAM_MECHANISMS, SaslStep
from sparklog.security.secrets import HIDDEN, Secret

ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 1_000_000
"""Largest number of iterations, about a second of work. With more, a malicious server could block a client."""
SALT_BYTES = 32
SALT_BYTES_MIN = 12
"""Least size of a salt that the library accepts at a login."""
SHAPES_MAX = 64
"""Largest number of shapes that unknown names can get. Each of them takes an HMAC at a login."""
MESSAGE_BYTES_MAX = 4_096

CredentialLookup = Callable[[str], "ScramCredential | None"]
"""Function that returns a user's credential for one mechanism; None if the user has none."""


class ScramCredential(Struct, frozen=True):
    """The server's data about a password for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential({HIDDEN}, iterations={self.iterations})"


def checked_name(name: str) -> str:
    """Return `name` if a user with a password can have it. Clients prepare names (SASLprep, RFC 4013) before they send
    them, so a user can only log in with a name that preparation does not change. Raises InvalidConfigError, which shows
    the prepared name."""
    prepared = _prepared(check_user_name(name), f"the user's name {name!r}")
    if prepared != name:
        raise InvalidConfigError(f"the user's name {name!r} is not in its normal form (SASLprep): write {prepared!r}")
    return name


def login_name(name: str) -> str:
    """Return the name of the user as whom a peer logs in: the prepared form of the received name, because not every
    client prepares it. Raises InvalidConfigError if no user can have it."""
    return check_user_name(_prepared(name, "the user's name"))


def salted_credential(mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a salted password, which a client has computed (KIP-554). Raises InvalidConfigError for
    a number of iterations out of range, a short salt, or a salted password of a wrong size."""
    digest = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise InvalidConfigError(f"iterations = {iterations}: {ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed")
    size = hashlib.new(digest).digest_size
    if len(salt) < SALT_BYTES_MIN:
        raise InvalidConfigError(f"a salt of {len(salt)} bytes: use {SALT_BYTES_MIN} bytes or more")
    if len(salted_password) != size:
        raise InvalidConfigError(
            f"a {mechanism} credential needs a salted password of {size} bytes, not {len(salted_password)}"
        )
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    server_key = hmac.digest(salted_password, b"Server Key", digest)
    return ScramCredential(salt, hashlib.new(digest, client_key).digest(), server_key, iterations)


def make_credential(
    mechanism: str, password: Secret, iterations: int = ITERATIONS_MIN, salt: bytes | None = None
) -> ScramCredential:
    """Compute the credential of a password. `salt` None: a new random salt. Raises InvalidConfigError for an empty or
    invalid password, or a number of iterations out of range."""
    if not isinstance(iterations, int) or not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise InvalidConfigError(f"iterations = {iterations}: {ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed")
    if not _prepared(password.reveal(), "the password"):
        raise InvalidConfigError("the password is empty")
    parts = _mechanism(mechanism).make_auth_info(password.reveal(), iterations, salt)
    return ScramCredential(*parts)


def credential_matches(mechanism: str, password: Secret, credential: ScramCredential) -> bool:
    """Return True if the credential is that of the password. The time of the comparison does not depend on the
    result."""
    try:
        salted = make_credential(mechanism, password, credential.iterations, credential.salt)
    except InvalidConfigError:
        return False
    return hmac.compare_digest(salted.stored_key, credential.stored_key)


def _prepared(text: str, kind: str) -> str:
    if not text:
        return ""  # the library fails
    try:
        prepared: str = require("scramp.utils", "SCRAM").saslprep(text)
    except _scram_error():
        raise InvalidConfigError(f"{kind} has characters that SASLprep (RFC 4013) does not allow") from None
    return prepared


def credential_text(credential: ScramCredential) -> str:
    """Return the credential in Kafka's notation: `salt=…,stored_key=…,server_key=…,iterations=…`, in Base64."""
    parts = {"salt": credential.salt, "stored_key": credential.stored_key, "server_key": credential.server_key}
    encoded = [f"{name}={base64.b64encode(value).decode()}" for name, value in parts.items()]
    return ",".join([*encoded, f"iterations={credential.iterations}"])


def parse_credential(mechanism: str, text: str) -> ScramCredential:
    """Parse the result of `credential_text`. Raises InvalidConfigError, which does not quote the text."""
    digest_bytes = _hash(mechanism)().digest_size
    try:
        fields = dict(part.split("=", 1) for part in text.split(","))
        iterations = int(fields.pop("iterations"))
        values = {name: base64.b64decode(value, validate=True) for name, value in fields.items()}
        credential = ScramCredential(**values, iterations=iterations)
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise InvalidConfigError(
            f"a {mechanism} credential is not of the form salt=…,stored_key=…,server_key=…,iterations=…"
        ) from None
    if (
        {len(credential.stored_key), len(credential.server_key)} != {digest_bytes}
        or len(credential.salt) < SALT_BYTES_MIN
        or not ITERATIONS_MIN <= credential.iterations <= ITERATIONS_MAX
    ):
        raise InvalidConfigError(f"a {mechanism} credential has a length or a number of iterations that it cannot have")
    return credential


class Shape(NamedTuple):
    """The parts of a credential that every client can see: its number of iterations and the size of its salt."""

    iterations: int = ITERATIONS_MIN
    salt_bytes: int = SALT_BYTES


class UnknownUsers:
    """Credentials for names that no user of a mechanism has. Immutable, so all threads can use it."""

    def __init__(self, mechanism: str, server_secret: bytes, credentials: Iterable[ScramCredential] = ()) -> None:
        """`server_secret`: at least 32 random bytes that only the cluster's brokers know. `credentials`: those of the
        mechanism; if empty, unknown users look like new ones."""
        if len(server_secret) < 32:
            raise InvalidConfigError("the secret for unknown users has fewer than 32 bytes")
        self._mechanism = mechanism
        self._secret = server_secret
        self._hash_bytes = _hash(mechanism)().digest_size
        counts = Counter(Shape(c.iterations, len(c.salt)) for c in credentials)
        self._shapes = counts.most_common(SHAPES_MAX) or [(Shape(), 1)]

    def credential(self, name: str) -> ScramCredential:
        """Return a credential for an unknown name. No password matches it. Every call for a name returns the same
        credential, as long as the shapes of the known credentials stay the same."""
        shape = self._shape(name)
        stored, server = self._derive(f"stored\0{name}"), self._derive(f"server\0{name}")
        # a changed shape changes the salt, too, which looks like a new password
        seed = f"salt\0{shape.iterations}\0{shape.salt_bytes}\0{name}"
        blocks = range(-(-shape.salt_bytes // hashlib.sha512().digest_size))
        salt = b"".join(self._derive(f"{block}\0{seed}") for block in blocks)
        return ScramCredential(
            salt[: shape.salt_bytes], stored[: self._hash_bytes], server[: self._hash_bytes], shape.iterations
        )

    def _shape(self, name: str) -> Shape:
        """Return a shape for an unknown name. Among all names, the shapes have the same frequency as among users. Each
        shape draws a number from the name, weighted by its users, and the largest number wins. So a new user changes
        the shape of few unknown names. The number is the same for all mechanisms: a user has one number of iterations
        in all of them."""
        if len(self._shapes) == 1:
            return self._shapes[0][0]

        def drawn(shape: Shape, users: int) -> float:
            purpose = f"shape\0{shape.iterations}\0{shape.salt_bytes}\0{name}"
            digest = hmac.digest(self._secret, purpose.encode(), "sha512")
            return math.log((int.from_bytes(digest[:8], "big") + 1) / 2**64) / users

        return max(self._shapes, key=lambda candidate: drawn(*candidate))[0]

    def _derive(self, purpose: str) -> bytes:
        return hmac.digest(self._secret, f"{self._mechanism}\0{purpose}".encode(), "sha512")


class ScramServer:
    """The server's side of one exchange. It answers client-first with server-first, and client-final with server-final
    and the principal."""

    def __init__(self, mechanism: str, lookup: CredentialLookup, unknown: UnknownUsers) -> None:
        self._lookup = lookup
        self._unknown_users = unknown
        self._name = ""
        self._user_exists = False
        self._messages = 0
        self._lookup_error: Exception | None = None
        self._exchange = _mechanism(mechanism).make_server(self._auth_info)

    def respond(self, token: bytes, now_ms: int) -> SaslStep:
        """Answer a client's message; see `sasl.SaslServer`. Also raises the errors of the credential's look-up."""
        self._messages += 1
        if self._messages > 2 or len(token) > MESSAGE_BYTES_MAX:
            raise SaslAuthenticationFailedError(CREDENTIALS_WRONG)
        try:
            text = token.decode()
            if self._messages == 1:
                self._exchange.set_client_first(text)
                return SaslStep(self._exchange.get_server_first().encode())
            self._exchange.set_client_final(text)
            final = self._exchange.get_server_final().encode()
        except (UnicodeDecodeError, *_scram_error()) as e:
            self._messages = 2  # an exchange that has failed goes no further
            if self._lookup_error is not None:
                raise self._lookup_error from e
            raise SaslAuthenticationFailedError(CREDENTIALS_WRONG) from None
        if not self._user_exists:
            raise SaslAuthenticationFailedError(CREDENTIALS_WRONG)
        return SaslStep(final, user(self._name))

    def _looked_up(self, name: str) -> ScramCredential | None:
        try:
            return self._lookup(name)
        except Exception as e:
            self._lookup_error = e  # the library would make a failed authentication of it
            raise

    def _auth_info(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        try:
            name = login_name(name)
        except InvalidConfigError:
            credential = None
        else:
            credential = self._looked_up(name)
        self._name, self._user_exists = name, credential is not None
        unknown = self._unknown_users.credential(name)
        chosen = credential or unknown  # made for known ones, too: the time must not tell
        return chosen.salt, chosen.stored_key, chosen.server_key, chosen.iterations


class ScramClient:
    """The client's side of one exchange. Call `first`, then `respond` with server-first, then `finish` with
    server-final."""

    def __init__(self, mechanism: str, name: str, password: Secret) -> None:
        try:
            self._exchange = require("scramp", "SCRAM").ScramClient(
                [_checked_mechanism(mechanism)], name, password.reveal()
            )
        except _scram_error():
            raise InvalidConfigError(
                "sasl.username or sasl.password has characters that SASLprep does not allow"
            ) from None

    def first(self) -> bytes:
        """Return client-first, the client's first message."""
        return _encode(self._exchange.get_client_first())

    def respond(self, server_first: bytes) -> bytes:
        """Return client-final, which proves the password. Raises SaslAuthenticationFailedError if the server's message
        is not valid, or requires too few or too many iterations."""
        try:
            self._exchange.set_server_first(server_first.decode())
            iterations = int(self._exchange.iterations)
            if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
                raise SaslAuthenticationFailedError(f"the broker asks for {iterations} iterations")
            return _encode(self._exchange.get_client_final())
        except (UnicodeDecodeError, *_scram_error()):
            raise SaslAuthenticationFailedError("the broker's SCRAM message is not valid") from None

    def finish(self, server_final: bytes) -> None:
        """Check that the broker knows the credential. Raises SaslAuthenticationFailedError if it does not prove
        this."""
        try:
            self._exchange.set_server_final(server_final.decode())
        except (UnicodeDecodeError, *_scram_error()):
            raise SaslAuthenticationFailedError(
                "the broker could not prove that it knows the user's credential"
            ) from None


def _encode(message: str) -> bytes:
    return message.encode()


def _checked_mechanism(mechanism: str) -> str:
    if mechanism not in SCRAM_MECHANISMS:
        raise InvalidConfigError(f"{mechanism!r} is not a SCRAM mechanism: use {' or '.join(SCRAM_MECHANISMS)}")
    return mechanism


def _mechanism(mechanism: str) -> Any:
    return require("scramp", "SCRAM").ScramMechanism(_checked_mechanism(mechanism))


def _hash(mechanism: str) -> Callable[[], Any]:
    return hashlib.sha256 if _checked_mechanism(mechanism) == SCRAM_MECHANISMS[0] else hashlib.sha512


def _scram_error() -> tuple[type[Exception]]:
    return (require("scramp", "SCRAM").ScramException,)
