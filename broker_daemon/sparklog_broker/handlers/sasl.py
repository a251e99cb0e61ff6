"""SASL_HANDSHAKE and SASL_AUTHENTICATE: the pipeline passes the state of the connection."""

from __future__ import annotations

from sparklog.errors import IllegalSaslStateError
from sparklog.protocol.security_messages import SaslAuthenticateRequest, SaslHandshakeRequest
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext


async def sasl_handshake(request: SaslHandshakeRequest, payload: memoryview, context: RequestContext) -> Response:
    """Begin an authentication; see `Authenticator`."""
    return await _authenticate(request, context)


async def sasl_authenticate(request: SaslAuthenticateRequest, payload: memoryview, context: RequestContext) -> Response:
    """Continue an authentication; see `Authenticator`."""
    return await _authenticate(request, context)


async def _authenticate(request: SaslHandshakeRequest | SaslAuthenticateRequest, context: RequestContext) -> Response:
    if context.authenticate is None:
        raise IllegalSaslStateError("this listener has no SASL: set security.protocol to PLAINTEXT or SSL")
    return await context.authenticate(request)
