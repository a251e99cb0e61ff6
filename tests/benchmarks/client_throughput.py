"""Throughput of the Python client against a broker on the same machine: records per second, each way of sending and
reading.

python tests/benchmarks/client_throughput.py --help
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import sparklog
from sparklog import TopicPartition


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap-servers", help="default: a broker of its own")
    parser.add_argument("--command-config", metavar="FILE", help="how to connect: a file of client settings")
    parser.add_argument("--local-read", default="auto", choices=("auto", "off"), help="of poll_batches and poll")
    parser.add_argument("--records", type=int, default=2_000_000, help="per run with tables (default %(default)s)")
    parser.add_argument(
        "--single-records", type=int, default=300_000, help="per run of send() and poll() (default %(default)s)"
    )
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--compression", default="none", choices=("none", "lz4", "zstd"))
    parser.add_argument("--acks", default="all", choices=("0", "1", "all"))
    parser.add_argument("--runs", type=int, default=3, help="the median is shown (default %(default)s)")
    arguments = parser.parse_args()
    if arguments.bootstrap_servers:
        Benchmark(arguments, arguments.bootstrap_servers).run()
        return
    with sparklog.start_local() as broker:
        Benchmark(arguments, broker.bootstrap_servers).run()


class Benchmark:
    """One topic per way of sending; the readers read what `send_batch` wrote."""

    def __init__(self, arguments: argparse.Namespace, bootstrap_servers: str) -> None:
        self.arguments = arguments
        self.bootstrap_servers = bootstrap_servers
        self.value = bytes(arguments.value_bytes)
        self.security = arguments.command_config
        self.admin = sparklog.Admin(bootstrap_servers, security=self.security)
        self.topics = 0
        self.filled = ""

    def run(self) -> None:
        a = self.arguments
        chunk = min(a.records, 100_000)
        keys = pa.array([b"key-%08d" % i for i in range(chunk)], pa.binary())
        values = pa.array([self.value] * chunk, pa.binary())
        self.plain, self.keyed = pa.table({"value": values}), pa.table({"key": keys, "value": values})
        self.show("send_batch, no keys", a.records, lambda: self.send_tables(self.plain))
        self.show("send_batch, keys", a.records, lambda: self.send_tables(self.keyed))
        self.show("send, no keys", a.single_records, lambda: self.send_records(None))
        self.show("send, 1000 different keys", a.single_records, lambda: self.send_records(1000))
        self.show("send, all keys different", a.single_records, lambda: self.send_records(a.single_records))
        self.new_topic()
        self.send_tables(self.plain, self.filled)
        self.show("poll_batches", a.records, self.poll_batches)
        self.show("poll", a.single_records, self.poll)
        self.show("read_table, mapped files", a.records, lambda: self.read_table("auto"))
        self.show("read_table, socket", a.records, lambda: self.read_table("off"))

    def show(self, what: str, records: int, run: Callable[[], float]) -> None:
        rates = [records / run() for _ in range(self.arguments.runs)]
        rate = statistics.median(rates)
        mib = rate * self.arguments.value_bytes / 2**20
        print(f"{what:<28} {rate / 1e6:8.2f} M records/s {mib:10.0f} MiB/s of values", flush=True)

    def new_topic(self) -> str:
        self.topics += 1
        self.filled = f"throughput-{time.time_ns()}-{self.topics}"
        self.admin.create_topic(self.filled, partitions=self.arguments.partitions)
        return self.filled

    def producer(self) -> sparklog.Producer:
        a = self.arguments
        return sparklog.Producer(self.bootstrap_servers, acks=a.acks, compression=a.compression, security=self.security)

    def send_tables(self, table: pa.Table, topic: str | None = None) -> float:
        topic = topic or self.new_topic()
        with self.producer() as producer:
            start = time.perf_counter()
            left = self.arguments.records
            while left > 0:
                producer.send_batch(topic, table.slice(0, left))
                left -= table.num_rows
            producer.flush()
            return time.perf_counter() - start

    def send_records(self, different_keys: int | None) -> float:
        topic, value = self.new_topic(), self.value
        count = self.arguments.single_records
        with self.producer() as producer:
            if different_keys is None:
                start = time.perf_counter()
                for _ in range(count):
                    producer.send(topic, value)
            else:
                keys = [b"key-%08d" % i for i in range(different_keys)]
                start = time.perf_counter()
                for i in range(count):
                    producer.send(topic, value, keys[i % different_keys])
            producer.flush()
            return time.perf_counter() - start

    def consumer(self, **settings: Any) -> sparklog.Consumer:
        settings |= {"local_read": self.arguments.local_read, "security": self.security}
        consumer = sparklog.Consumer(self.bootstrap_servers, **settings)
        consumer.assign([TopicPartition(self.filled, p) for p in range(self.arguments.partitions)])
        return consumer

    def poll_batches(self) -> float:
        start, left = time.perf_counter(), self.arguments.records
        with self.consumer() as consumer:
            while left > 0:
                left -= sum(b.num_rows for b in consumer.poll_batches(1000))
        return time.perf_counter() - start

    def poll(self) -> float:
        start, left = time.perf_counter(), self.arguments.single_records
        with self.consumer() as consumer:
            while left > 0:
                left -= len(consumer.poll(1000))
        return time.perf_counter() - start

    def read_table(self, local: str) -> float:
        start = time.perf_counter()
        table = sparklog.read_table(self.bootstrap_servers, self.filled, local=local, security=self.security)
        assert table.num_rows == self.arguments.records
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
