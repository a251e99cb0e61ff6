"""Requests to a broker whose port answers before it has joined its cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from sparklog_broker.broker import Broker
from sparklog_broker.config import make_config
from sparklog_broker.network.connection import Connection
from sparklog_broker.pipeline import Pipeline
from sparklog_broker.registry import HANDLERS

from sparklog.errors import BrokerNotAvailableError
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.codec import encode
from sparklog.protocol.frames import RequestPrefix, decode_response_prefix
from tests.support.requests import Asking
from tests.unit.broker.security.requests_about import NOT_THERE, REQUESTS_ABOUT, parts


def test_a_request_is_answered_with_an_error_that_clients_try_again_after(tmp_path: Path) -> None:
    codes: dict[Api, int] = {}

    async def main() -> None:
        broker = Broker.open(make_config({"data.dir": str(tmp_path / "data")}), asyncio.get_running_loop())
        broker.start()
        pipeline = Pipeline(broker, HANDLERS)
        try:
            for api in (api for api, spec in APIS.items() if not spec.is_before_join):
                request, payload = parts(REQUESTS_ABOUT[api](NOT_THERE))
                body = bytearray(encode(request) + payload)
                prefix = RequestPrefix(api, APIS[api].version_max, 7, len(body) - len(payload), len(body))
                reply = await pipeline.answer(prefix, memoryview(body), cast(Connection, Asking()))
                assert reply is not None
                head = b"".join(bytes(part) for part in reply.parts if isinstance(part, bytes))
                codes[api] = decode_response_prefix(head, 1 << 20).error_code
        finally:
            broker.stop_waiting()
            await broker.close()

    asyncio.run(main())
    assert set(codes.values()) == {BrokerNotAvailableError.code}, codes
    assert BrokerNotAvailableError.retriable
