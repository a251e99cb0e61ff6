"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), with the library `scramp`.

The server keeps of a password only a salt, `StoredKey`, `ServerKey` and the number of iterations: neither can be used
to log in. `scramp` parses, computes and compares in constant time; this module adds what a server owes its users:

- A user who is not known gets a salt made from the server's secret and the name. It is the same at every try, as a
  known user's is, and the exchange fails at the same message with the same text.
- Nonces are made by the server for each exchange, and an exchange is used once, so that a replayed message proves
  nothing.
- At least 4,096 iterations, on both sides: nobody can make the other side's work cheaper.
- Channel binding (the mechanisms with -PLUS) is not offered, and a client that asks for it is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from sparklog.errors import InvalidConfigError, SaslAuthenticationFailedError
from sparklog.security.optional import require
from sparklog.security.principals import check_name, user
from sparklog.security.sasl import CREDENTIALS_WRONG, SCRAM_MECHANISMS, SaslStep
from sparklog.security.secrets import HIDDEN, Secret

ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 1_000_000
"""A second or so of work: more would let whoever sets a password stop the client."""
SALT_BYTES = 32
MESSAGE_BYTES_MAX = 4_096

CredentialLookup = Callable[[str], "ScramCredential | None"]
"""The credential of a user, for one mechanism; None: there is none."""


class ScramCredential(Struct, frozen=True):
    """What the server keeps of a password, for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential({HIDDEN}, iterations={self.iterations})"


def normalized_name(name: str) -> str:
    """A user's name as SCRAM compares it (SASLprep, RFC 4013): users are stored under this one. Raises
    InvalidConfigError."""
    return check_name(_prepared(name, "the user's name"))


def make_credential(
    mechanism: str, password: Secret, iterations: int = ITERATIONS_MIN, salt: bytes | None = None
) -> ScramCredential:
    """The credential of a password; a fresh salt unless one is given. Raises InvalidConfigError."""
    if not isinstance(iterations, int) or not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise InvalidConfigError(f"iterations = {iterations}: {ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed")
    if not _prepared(password.reveal(), "the password"):
        raise InvalidConfigError("the password is empty")
    made = _mechanism(mechanism).make_auth_info(password.reveal(), iterations, salt)
    return ScramCredential(*made)


def credential_matches(mechanism: str, password: Secret, credential: ScramCredential) -> bool:
    """Whether the credential is that of the password; takes as long whatever the answer is."""
    try:
        salted = make_credential(mechanism, password, credential.iterations, credential.salt)
    except InvalidConfigError:
        return False
    return hmac.compare_digest(salted.stored_key, credential.stored_key)


def _prepared(text: str, what: str) -> str:
    if not text:
        return ""  # the library fails
    try:
        prepared: str = require("scramp.utils", "SCRAM").saslprep(text)
    except _scram_error():
        raise InvalidConfigError(f"{what} has characters that SASLprep (RFC 4013) does not allow") from None
    return prepared


def credential_text(credential: ScramCredential) -> str:
    """The credential as Kafka writes one: `salt=…,stored_key=…,server_key=…,iterations=…`, Base64."""
    parts = {"salt": credential.salt, "stored_key": credential.stored_key, "server_key": credential.server_key}
    encoded = [f"{name}={base64.b64encode(value).decode()}" for name, value in parts.items()]
    return ",".join([*encoded, f"iterations={credential.iterations}"])


def parse_credential(mechanism: str, text: str) -> ScramCredential:
    """Reads `credential_text`. Raises InvalidConfigError, without the text."""
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
        or len(credential.salt) < 12
        or not ITERATIONS_MIN <= credential.iterations <= ITERATIONS_MAX
    ):
        raise InvalidConfigError(f"a {mechanism} credential has a length or a number of iterations that it cannot have")
    return credential


def unknown_user_credential(mechanism: str, name: str, server_secret: bytes, iterations: int) -> ScramCredential:
    """A credential for a user who does not exist: no password matches it, and its salt is always the same.

    `server_secret`: at least 32 random bytes that all brokers of the cluster share and nobody else knows.
    """
    if len(server_secret) < 32:
        raise InvalidConfigError("the secret for unknown users has fewer than 32 bytes")

    def derived(purpose: str) -> bytes:
        return hmac.digest(server_secret, f"{mechanism}\0{purpose}\0{name}".encode(), "sha512")

    size = _hash(mechanism)().digest_size
    return ScramCredential(derived("salt")[:SALT_BYTES], derived("stored")[:size], derived("server")[:size], iterations)


class ScramServer:
    """One exchange of the server: client-first gives server-first, client-final gives server-final and the
    principal."""

    def __init__(
        self, mechanism: str, lookup: CredentialLookup, server_secret: bytes, unknown_iterations: int = ITERATIONS_MIN
    ) -> None:
        """`unknown_iterations`: as many as new users get, so that an unknown one looks like them."""
        self._mechanism = mechanism
        self._lookup = lookup
        self._server_secret = server_secret
        self._unknown_iterations = unknown_iterations
        self._name = ""
        self._known = False
        self._messages = 0
        self._lookup_error: Exception | None = None
        self._exchange = _mechanism(mechanism).make_server(self._auth_info)

    def respond(self, token: bytes, now_ms: int) -> SaslStep:
        """See `sasl.SaslServer`. Raises what the lookup of the credential raises, too."""
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
        if not self._known:
            raise SaslAuthenticationFailedError(CREDENTIALS_WRONG)
        return SaslStep(final, user(self._name))

    def _auth_info(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        try:
            credential = self._lookup(name)
        except Exception as e:
            self._lookup_error = e  # the library would make a failed authentication of it
            raise
        self._name, self._known = name, credential is not None
        unknown = unknown_user_credential(self._mechanism, name, self._server_secret, self._unknown_iterations)
        found = credential or unknown  # made for known ones, too: the time must not tell
        return found.salt, found.stored_key, found.server_key, found.iterations


class ScramClient:
    """One exchange of the client: `first`, then `respond` to server-first, then `finish` with server-final."""

    def __init__(self, mechanism: str, name: str, password: Secret) -> None:
        try:
            self._exchange = require("scramp", "SCRAM").ScramClient([_known(mechanism)], name, password.reveal())
        except _scram_error():
            raise InvalidConfigError(
                "sasl.username or sasl.password has characters that SASLprep does not allow"
            ) from None

    def first(self) -> bytes:
        """The first message."""
        return _encoded(self._exchange.get_client_first())

    def respond(self, server_first: bytes) -> bytes:
        """The proof. Raises SaslAuthenticationFailedError: the answer is not one, or asks for too little or too much
        work."""
        try:
            self._exchange.set_server_first(server_first.decode())
            iterations = int(self._exchange.iterations)
            if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
                raise SaslAuthenticationFailedError(f"the broker asks for {iterations} iterations")
            return _encoded(self._exchange.get_client_final())
        except (UnicodeDecodeError, *_scram_error()):
            raise SaslAuthenticationFailedError("the broker's SCRAM message is not valid") from None

    def finish(self, server_final: bytes) -> None:
        """Checks that the broker knows the credential. Raises SaslAuthenticationFailedError: it is somebody else."""
        try:
            self._exchange.set_server_final(server_final.decode())
        except (UnicodeDecodeError, *_scram_error()):
            raise SaslAuthenticationFailedError(
                "the broker could not prove that it knows the user's credential"
            ) from None


def _encoded(message: str) -> bytes:
    return message.encode()


def _known(mechanism: str) -> str:
    if mechanism not in SCRAM_MECHANISMS:
        raise InvalidConfigError(f"{mechanism!r} is no SCRAM mechanism: use {' or '.join(SCRAM_MECHANISMS)}")
    return mechanism


def _mechanism(mechanism: str) -> Any:
    return require("scramp", "SCRAM").ScramMechanism(_known(mechanism))


def _hash(mechanism: str) -> Callable[[], Any]:
    return hashlib.sha256 if _known(mechanism) == SCRAM_MECHANISMS[0] else hashlib.sha512


def _scram_error() -> tuple[type[Exception]]:
    return (require("scramp", "SCRAM").ScramException,)
