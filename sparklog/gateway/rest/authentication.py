"""The authentication of the schema registry's clients: from HTTP's header to SASL messages for the broker.

The broker knows the users. The gateway is the client's side of a SASL exchange on the client's own connection to the
broker, with the password or token of the header, and keeps neither.
"""

from __future__ import annotations

import base64
import binascii

from sparklog.errors import SaslAuthenticationFailedError, SparklogError, UnsupportedSaslMechanismError
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.kafka.schemas.errors import UNAUTHORIZED, RegistryError
from sparklog.protocol.apis import Api
from sparklog.protocol.security_messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from sparklog.security.client_security import ClientSecurity
from sparklog.security.sasl import OAUTHBEARER
from sparklog.security.sasl_client import STEPS_MAX, SaslClient, sasl_client
from sparklog.security.secrets import Secret

HEADER_BYTES_MAX = 12 * 1024
SCRAM = ("SCRAM-SHA-512", "SCRAM-SHA-256")


async def authenticate(broker: BrokerConnection, header: bytes) -> int:
    """Authenticate a connection to the broker by the value of the header `Authorization`. Returns the lifetime of the
    session in ms; 0: no limit. Raises RegistryError for a header that is not valid, and for a refusal; SparklogError if
    the broker does not answer."""
    scheme, _, value = header.partition(b" ")
    if len(header) > HEADER_BYTES_MAX or scheme.lower() not in (b"basic", b"bearer"):
        raise RegistryError(UNAUTHORIZED, "Unauthorized: send a name and a password (Basic), or a token (Bearer)")
    try:
        if scheme.lower() == b"bearer":
            security, token = ClientSecurity(mechanism=OAUTHBEARER), Secret(value.strip().decode("ascii"))
            return await _exchange(broker, OAUTHBEARER, sasl_client(security, token))
        name, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
        return await _scram(broker, name, Secret(password))
    except (binascii.Error, UnicodeError):
        raise RegistryError(UNAUTHORIZED, "Unauthorized: the header Authorization is not valid") from None
    except SaslAuthenticationFailedError as e:
        raise RegistryError(UNAUTHORIZED, f"Unauthorized: {e}") from None
    except UnsupportedSaslMechanismError:
        reason = f"the listener's sasl.enabled.mechanisms has neither {' nor '.join(SCRAM)}"
        raise RegistryError(UNAUTHORIZED, f"Unauthorized: {reason}, or no {OAUTHBEARER} for tokens") from None


async def _scram(broker: BrokerConnection, name: str, password: Secret) -> int:
    first, second = (ClientSecurity(mechanism=one, username=name, password=password) for one in SCRAM)
    try:
        try:
            return await _exchange(broker, first.mechanism, sasl_client(first))
        except UnsupportedSaslMechanismError:
            return await _exchange(broker, second.mechanism, sasl_client(second))
    except SparklogError as e:
        if e.retriable or isinstance(e, UnsupportedSaslMechanismError):
            raise
        raise SaslAuthenticationFailedError(str(e)) from None  # characters that no name or password has


async def _exchange(broker: BrokerConnection, mechanism: str, client: SaslClient) -> int:
    """Exchange the messages of a mechanism, and return the lifetime of the session in ms."""
    await broker.ask(Api.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism), SaslHandshakeResponse)
    message: bytes | None = client.first()
    for _ in range(STEPS_MAX):
        answer = await broker.ask(
            Api.SASL_AUTHENTICATE, SaslAuthenticateRequest(message or b""), SaslAuthenticateResponse
        )
        if answer.error_code:
            raise SaslAuthenticationFailedError(answer.message or "the broker refuses the client")
        message = client.answer(answer.auth_bytes)
        if answer.principal:
            return answer.session_lifetime_ms
    raise SaslAuthenticationFailedError("the exchange has no end")
