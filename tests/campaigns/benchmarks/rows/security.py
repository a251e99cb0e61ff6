"""TLS, SCRAM and ACLs: beside Kafka with the same, beside sparklog's plaintext, and logins per second."""

from __future__ import annotations

from functools import partial

from ..context import Context
from ..results import Measurement
from ..secure_servers import ITERATIONS, PASSWORD, PLAIN, SCRAM_ACL, TLS, USER
from .consume import consume
from .produce import PARTITIONS, produce
from .row import Row, row

VALUE_BYTES = 1024
RECORDS = 1_000_000
LOGINS = 1_000
AT_ONCE = 8


def logins(context: Context, *, peer: bool, at_once: int) -> Measurement:
    """Measure logins per second."""
    server = context.server(peer, SCRAM_ACL)
    return context.measured_client(
        server,
        "logins_per_s",
        "logins",
        system="kafka" if peer else "sparklog",
        bootstrap=server.address(SCRAM_ACL),
        authority=str(context.certificates.authority),
        username=USER,
        password=PASSWORD,
        count=max(50, round(LOGINS * context.scale)),
        at_once=at_once,
    )


_BOTH = {"certificates": "P-256, the same for both; the TLS version and cipher that both choose by default"}
_SCRAM = {
    "login": f"SCRAM-SHA-256, {ITERATIONS:,} iterations on both sides",
    "ACLs": "Read, Write, Describe for topics with a prefix, Read for groups with one",
}
_RECORDS = {
    "records": f"{RECORDS:,} of {VALUE_BYTES:,} bytes, {PARTITIONS} partitions, no compression",
    "sparklog": "TCP: no Unix socket, no mapped files (local.socket.enabled=false, local.read.enabled=false)",
}
_CLIENT = {"client": "the same for both, in Python; each login has a TLS handshake and the hashing"}
_WAYS = (("produce", "produce 1 KiB, acks=all,"), ("consume", "consume 1 KiB"))


def _measure(context: Context, *, way: str, peer: bool, where: str) -> Measurement:
    measure = produce if way == "produce" else consume
    return measure(context, peer=peer, where=where, value_bytes=VALUE_BYTES, records=RECORDS)


ROWS: tuple[Row, ...] = (
    *(
        row(
            f"security-{way}-{name}", f"{title} {how}", 2, partial(_measure, way=way, where=listener),
            **_RECORDS, **_BOTH, **more,
        )
        for name, how, listener, more in (
            ("tls", "over TLS", TLS, {}),
            ("scram-acl", "over TLS, with SCRAM and ACLs", SCRAM_ACL, _SCRAM),
        )
        for way, title in _WAYS
    ),
    *(
        row(
            f"security-tls-cost-{way}", f"{title} over TLS, beside the same without", None,
            partial(_measure, way=way, peer=False), peer="sparklog without TLS",
            ours={"where": TLS}, theirs={"where": PLAIN}, **_RECORDS,
        )
        for way, title in _WAYS
    ),
    *(
        row(
            name, f"logins with SCRAM over TLS, {how}", 1, partial(logins, at_once=at_once), unit="logins/s",
            **_BOTH, **_SCRAM, **_CLIENT,
        )
        for name, how, at_once in (
            ("security-logins", f"{AT_ONCE} at once", AT_ONCE),
            ("security-logins-one", "one after the other", 1),
        )
    ),
)  # fmt: skip
