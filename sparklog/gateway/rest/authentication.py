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
from sparklog.security.sasl_client import SaslClient, sasl_client
from sparklog.security.secrets import Secret

HEADER_BYTES_MAX = 12 * 1024
SCRAM = ("SCRAM-SHA-512", "SCRAM-SHA-256")
MESSAGES_MAX = 4


async def authenticate(broker: BrokerConnection, header: bytes) -> None:
    """Authenticate a connection to the broker by the value of the header `Authorization`. Raises RegistryError for a
    header that is not valid, and for a refusal; SparklogError if the broker does not answer."""
    scheme, _, value = header.partition(b" ")
    if len(header) > HEADER_BYTES_MAX or scheme.lower() not in (b"basic", b"bearer"):
        raise RegistryError(UNAUTHORIZED, "Unauthorized: send a name and a password (Basic), or a token (Bearer)")
    try:
        if scheme.lower() == b"bearer":
            security, token = ClientSecurity(mechanism=OAUTHBEARER), Secret(value.strip().decode("ascii"))
            await _exchange(broker, OAUTHBEARER, sasl_client(security, token))
        else:
            name, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
            await _scram(broker, name, Secret(password))
    except (binascii.Error, UnicodeError):
        raise RegistryError(UNAUTHORIZED, "Unauthorized: the header Authorization is not valid") from None
    except SaslAuthenticationFailedError as e:
        raise RegistryError(UNAUTHORIZED, f"Unauthorized: {e}") from None
    except UnsupportedSaslMechanismError:
        reason = f"the listener's sasl.enabled.mechanisms has neither {' nor '.join(SCRAM)}"
        raise RegistryError(UNAUTHORIZED, f"Unauthorized: {reason}, or no {OAUTHBEARER} for tokens") from None


async def _scram(broker: BrokerConnection, name: str, password: Secret) -> None:
    try:
        for mechanism in SCRAM:
            security = ClientSecurity(mechanism=mechanism, username=name, password=password)
            try:
                return await _exchange(broker, mechanism, sasl_client(security))
            except UnsupportedSaslMechanismError:
                if mechanism == SCRAM[-1]:
                    raise
    except SparklogError as e:
        if e.retriable or isinstance(e, UnsupportedSaslMechanismError):
            raise
        raise SaslAuthenticationFailedError(str(e)) from None  # characters that no name or password has


async def _exchange(broker: BrokerConnection, mechanism: str, client: SaslClient) -> None:
    await broker.ask(Api.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism), SaslHandshakeResponse)
    message: bytes | None = client.first()
    for _ in range(MESSAGES_MAX):
        answer = await broker.ask(
            Api.SASL_AUTHENTICATE, SaslAuthenticateRequest(message or b""), SaslAuthenticateResponse
        )
        if answer.error_code:
            raise SaslAuthenticationFailedError(answer.message or "the broker refuses the client")
        message = client.answer(answer.auth_bytes)
        if answer.principal:
            return
    raise SaslAuthenticationFailedError("the exchange has no end")
