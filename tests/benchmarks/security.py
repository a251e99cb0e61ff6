"""What TLS and SCRAM cost: produce, consume and connect, each kind of listener beside plaintext, in one run.

    python -m tests.benchmarks.security [--records N] [--runs N]

One broker, one client process, TCP (no Unix socket, no mapped files), so that nothing but the listener differs. The
kinds take turns; medians and their ratios to plaintext are shown.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from sparklog import Admin, Consumer, Producer, TopicPartition
from sparklog.client.net.addresses import parse_bootstrap
from sparklog.client.net.connection import Connection
from sparklog.security.client_security import client_security
from tests.system.secure_broker import PASSWORD, SecureBroker

VALUE_BYTES = 1_000
CHUNK_RECORDS = 10_000
CONNECTIONS = 200
MORE = 'local.socket.enabled = false\nlocal.read.enabled = false\nauthorizer = "acl"\nsuper.users = "User:ANONYMOUS;User:admin"'


class Bench:
    """One broker, filled once."""

    def __init__(self, broker: SecureBroker, records: int) -> None:
        self.broker = broker
        self.records = records
        login = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "admin", "sasl.password": PASSWORD}
        self.kinds: dict[str, tuple[str, dict[str, str]]] = {
            "plaintext": ("LOCAL", {}),
            "tls": ("TLS", broker.tls(**{"security.protocol": "SSL"})),
            "scram": ("SASL", login | {"security.protocol": "SASL_PLAINTEXT"}),
            "tls+scram+acl": ("BOTH", broker.tls(**login) | {"security.protocol": "SASL_SSL"}),
        }
        self.table = pa.table({"value": pa.array([bytes(VALUE_BYTES)] * CHUNK_RECORDS, pa.binary())})
        with Admin(broker.addresses["LOCAL"]) as admin:
            admin.set_user_password("admin", PASSWORD)
            admin.create_topic("filled", partitions=1)
        self.produce("plaintext", "filled")

    def produce(self, kind: str, topic: str = "") -> float:
        """MB/s of values, acks=all."""
        listener, security = self.kinds[kind]
        if not topic:
            topic = f"t{time.time_ns()}"
            with Admin(self.broker.addresses["LOCAL"]) as admin:
                admin.create_topic(topic, partitions=1)
        begun = time.perf_counter()
        with Producer(self.broker.addresses[listener], security=security, linger_ms=5) as producer:
            for _ in range(self.records // CHUNK_RECORDS):
                producer.send_batch(topic, self.table)
            producer.flush()
        taken = time.perf_counter() - begun
        if topic != "filled":
            with Admin(self.broker.addresses["LOCAL"]) as admin:
                admin.delete_topic(topic)
        return self.records * VALUE_BYTES / taken / 1e6

    def consume(self, kind: str) -> float:
        """MB/s of values, as Arrow batches."""
        listener, security = self.kinds[kind]
        count = 0
        begun = time.perf_counter()
        with Consumer(self.broker.addresses[listener], security=security) as consumer:
            consumer.assign([TopicPartition("filled", 0)])
            while count < self.records:
                count += sum(batch.data.num_rows for batch in consumer.poll_batches(timeout_ms=5_000))
        return count * VALUE_BYTES / (time.perf_counter() - begun) / 1e6

    def connect(self, kind: str) -> float:
        """Connections a second, one after the other, each ready for requests."""
        listener, security = self.kinds[kind]
        endpoint, resolved = parse_bootstrap(self.broker.addresses[listener])[0], client_security(security)
        begun = time.perf_counter()
        for _ in range(CONNECTIONS):
            with closing(Connection(endpoint, security=resolved)):
                pass
        return CONNECTIONS / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=500_000, help="of 1,000 bytes (default %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="the median is shown (default %(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sparklog-bench-") as directory:
        broker = SecureBroker(Path(directory), more=MORE)
        try:
            show(Bench(broker, given.records), given.runs)
        finally:
            broker.stop()


def show(bench: Bench, runs: int) -> None:
    """Prints a row for each kind and measurement."""
    measures: dict[str, tuple[str, Callable[[str], float]]] = {
        "security-produce": ("MB/s", bench.produce),
        "security-consume": ("MB/s", bench.consume),
        "security-connect": ("connections/s", bench.connect),
    }
    for name, (unit, measure) in measures.items():
        found: dict[str, list[float]] = {kind: [] for kind in bench.kinds}
        for run in range(runs + 1):
            for kind in bench.kinds:
                value = measure(kind)
                if run:  # the first one warms up
                    found[kind].append(value)
        plain = statistics.median(found["plaintext"])
        for kind, values in found.items():
            median = statistics.median(values)
            spread = f"{min(values):.0f} to {max(values):.0f}"
            print(f"{name:<18} {kind:<14} {median:8.0f} {unit:<14} {median / plain:5.2f} x  ({spread})", flush=True)


if __name__ == "__main__":
    main()
