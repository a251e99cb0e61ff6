"""The pipeline's view of the connection of a request."""

from __future__ import annotations

from sparklog_broker.counters.requests import RequestTimes

from sparklog.security.principals import ANONYMOUS


class Asking:
    local_address = ("127.0.0.1", 1)
    peer_host = "127.0.0.1"
    peer_name = "127.0.0.1:2"
    principal = ANONYMOUS
    client_id = gateway = ""
    is_gateway = False
    authentication = None
    is_identified = True
    mute_ms = 0
    listener = local_socket = ""
    times = RequestTimes()
