"""SASL_HANDSHAKE and SASL_AUTHENTICATE. The gateway passes both on to the broker, which knows the users.

The broker authenticates the session's own connection to it. So the gateway keeps no secret, and the broker applies the
client's permissions and quotas to each request of the session.
"""

from __future__ import annotations

from sparklog.errors import SaslAuthenticationFailedError, SparklogError, UnsupportedSaslMechanismError
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, code_of, kafka_code, text_of
from sparklog.protocol.apis import Api
from sparklog.protocol.security_messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from sparklog.security.sasl import PLAIN, TOKEN_BYTES_MAX

MECHANISM_CHARS_MAX = 64


async def sasl_handshake(session: Session, request: requests.SaslHandshake, version: int) -> responses.SaslHandshake:
    """Choose a mechanism. PLAIN needs a listener with TLS."""
    if not session.listener.protocol.sasl:
        return {"error_code": Kafka.ILLEGAL_SASL_STATE, "mechanisms": []}
    mechanism = request["mechanism"][:MECHANISM_CHARS_MAX]
    if mechanism == PLAIN and not session.listener.protocol.tls:
        # a password that the network can read is refused, as by the broker's listeners
        return {"error_code": Kafka.UNSUPPORTED_SASL_MECHANISM, "mechanisms": []}
    broker = await session.broker()
    try:
        answer = await broker.ask(Api.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism), SaslHandshakeResponse)
    except UnsupportedSaslMechanismError:
        return {"error_code": Kafka.UNSUPPORTED_SASL_MECHANISM, "mechanisms": []}
    except SparklogError as e:
        return {"error_code": code_of(e), "mechanisms": []}
    return {"error_code": kafka_code(answer.error_code), "mechanisms": answer.mechanisms}


async def sasl_authenticate(
    session: Session, request: requests.SaslAuthenticate, version: int
) -> responses.SaslAuthenticate:
    """Pass one message of the exchange on to the broker.

    Only the broker's verdict authenticates the session: its answer has a principal after the last message of a
    successful exchange. A challenge has none, also the challenge with the reason for a refused token (OAUTHBEARER).
    After a failure, also of a repeated authentication, the session ends with this answer, as the broker's connection
    does.
    """
    if not session.listener.protocol.sasl:
        return _refusal(Kafka.ILLEGAL_SASL_STATE, "the listener is without SASL: choose another security protocol")
    token = request["auth_bytes"]
    if len(token) > TOKEN_BYTES_MAX:
        session.refuse_authentication()
        reason = f"a SASL message of {len(token)} bytes; at most {TOKEN_BYTES_MAX} are allowed"
        return _refusal(Kafka.SASL_AUTHENTICATION_FAILED, reason)
    broker = await session.broker()
    try:
        answer = await broker.ask(Api.SASL_AUTHENTICATE, SaslAuthenticateRequest(token), SaslAuthenticateResponse)
    except SparklogError as e:
        session.refuse_authentication()
        code = code_of(e) if isinstance(e, SaslAuthenticationFailedError) else Kafka.ILLEGAL_SASL_STATE
        return _refusal(code, str(e))
    if answer.error_code:
        session.refuse_authentication()
    elif answer.principal:
        session.is_identified = True
    return {
        "error_code": kafka_code(answer.error_code),
        "error_message": text_of(answer.message),
        "auth_bytes": answer.auth_bytes,
        "session_lifetime_ms": answer.session_lifetime_ms,
    }


def _refusal(code: Kafka, reason: str) -> responses.SaslAuthenticate:
    return {"error_code": code, "error_message": text_of(reason), "auth_bytes": b""}
