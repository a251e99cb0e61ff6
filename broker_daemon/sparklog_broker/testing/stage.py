"""The stage of the pipeline that carries out the faults of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from sparklog.errors import SparklogError
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.messages import ProduceRequest
from sparklog_broker.network.reply import Reply, Response, Slice
from sparklog_broker.testing.faults import Disconnect, Faults, LoseResponse, Refuse, Slow, error_of


class StruckCall(Protocol):
    """The parts of the pipeline's calls that faults concern."""

    api: Api
    request: Message
    sent_bytes_max: int | None


C = TypeVar("C", bound=StruckCall)


class FaultStage:
    """Strikes requests with the faults in effect, before they are carried out and after."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    async def inject(self, proceed: Callable[[C], Awaitable[Response]], call: C) -> Response:
        """Carry the request out, or strike it with a fault. Raises the error of `refuse`."""
        fault = self._faults.take(call.api)
        match fault:
            case Slow():
                await asyncio.sleep(fault.seconds)
            case Refuse():
                return _refused(call, error_of(fault.error))
            case Disconnect():
                call.sent_bytes_max = fault.after_bytes
            case LoseResponse():
                response = await proceed(call)
                response.release()
                return Response(None, close=True)
        return await proceed(call)

    @staticmethod
    def cut(call: StruckCall | None, reply: Reply | None) -> Reply | None:
        """Return the reply, shortened and followed by the end of the connection if a fault has ordered so."""
        if call is None or reply is None or call.sent_bytes_max is None:
            return reply
        parts: list[bytes | memoryview | Slice] = []
        remaining = call.sent_bytes_max
        for part in reply.parts:
            if isinstance(part, bytes | memoryview):
                parts.append(part[:remaining])
                remaining -= min(remaining, len(part))
            else:
                parts.append(_Beginning(part, min(remaining, part.length_bytes)))
                remaining -= min(remaining, part.length_bytes)
        return Reply([part for part in parts if not isinstance(part, bytes | memoryview) or part], close=True)


class _Beginning:
    """The first bytes of a slice."""

    def __init__(self, part: Slice, length_bytes: int) -> None:
        self._part = part
        self.length_bytes = length_bytes

    @property
    def position(self) -> int:
        return self._part.position

    def fileno(self) -> int:
        return self._part.fileno()

    def release(self) -> None:
        self._part.release()


def _refused(call: StruckCall, error: SparklogError) -> Response:
    """Return the response with `error` for each item of the request. Raises `error` if the API has no items."""
    spec = APIS[call.api]
    if spec.item_results is None:
        raise error
    if isinstance(call.request, ProduceRequest) and call.request.acks == 0:
        return Response(None, close=True)  # without a response, only closing shows the error
    count = len(getattr(call.request, spec.item_results.field))
    results = spec.item_results.with_denials(call.request, None, frozenset(range(count)), error)
    return Response(spec.response(results))
