"""A client of the release on PYTHONPATH that runs until it is told to end: `python rolling_client.py BOOTSTRAP NAME
TOPICS`.

Four threads: an idempotent producer to `plain-NAME`, a transactional one to `transactions-NAME`, a group that reads
TOPICS (comma-separated), and snapshots of `transactions-NAME`. It uses only functions that the previous release has,
too, and imports nothing of the tests. It answers each line on stdin with one of JSON:

| line | answer |
|---|---|
| `rounds` | the number of rounds of each thread; `failed`: the error of the first thread that failed, or "" |
| `end` | the producers end: their sent records, by topic |
| `read {"TOPIC": COUNT}` | the group reads on to this number: its records, by topic; the process ends |
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import sparklog
import sparklog.errors

PARTITIONS = 3
PER_TRANSACTION = 6
PATIENCE_S = 60.0


class Client:
    """The threads, and their observations."""

    def __init__(self, bootstrap: str, name: str, topics: list[str]) -> None:
        self.bootstrap, self.name, self.topics = bootstrap, name, topics
        self.sent: dict[str, list[str]] = defaultdict(list)
        self.read: dict[str, list[str]] = defaultdict(list)
        self.wanted: dict[str, int] | None = None
        self.failed = ""
        self.rounds: dict[str, int] = {}
        self.ending = threading.Event()
        self.threads: dict[str, threading.Thread] = {}

    def run(self, name: str, work: Callable[[Callable[[], None]], None]) -> None:
        """Run `work`, which calls its argument once a round."""
        self.rounds[name] = 0

        def count() -> None:
            self.rounds[name] += 1

        def guarded() -> None:
            try:
                work(count)
            except BaseException:  # noqa: BLE001 - the test shows it
                self.failed = self.failed or traceback.format_exc()

        self.threads[name] = threading.Thread(target=guarded, name=name, daemon=True)
        self.threads[name].start()

    def send(self, done: Callable[[], None]) -> None:
        topic, number = f"plain-{self.name}", 0
        with sparklog.Producer(self.bootstrap, linger_ms=5) as producer:
            while not self.ending.is_set():
                values = [f"{self.name}-{number + i}" for i in range(30)]
                futures = [producer.send(topic, v.encode(), partition=i % PARTITIONS) for i, v in enumerate(values)]
                for future in futures:
                    future.result(PATIENCE_S)
                self.sent[topic] += values
                number += len(values)
                done()

    def transact(self, done: Callable[[], None]) -> None:
        topic, number = f"transactions-{self.name}", 0
        with sparklog.Producer(self.bootstrap, transactional_id=f"loader-{self.name}") as producer:
            producer.init_transactions()
            while not self.ending.is_set():
                values = [f"{self.name}-{number + i}" for i in range(PER_TRANSACTION)]
                producer.begin_transaction()
                for i, value in enumerate(values):
                    producer.send(topic, value.encode(), partition=i % PARTITIONS)
                if number % 4 == 3 * PER_TRANSACTION % 4:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                    self.sent[topic] += values
                number += PER_TRANSACTION
                done()

    def consume(self, done: Callable[[], None]) -> None:
        settings: dict[str, Any] = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
        with sparklog.Consumer(self.bootstrap, group_id=f"readers-{self.name}", **settings) as consumer:
            consumer.subscribe(self.topics)
            while self.wanted is None or any(len(self.read[t]) < n for t, n in self.wanted.items()):
                for record in consumer.poll(200):
                    self.read[record.topic].append((record.value or b"").decode())
                if self.rounds["consume"] % 20 == 0:
                    consumer.commit()
                done()

    def snapshot(self, done: Callable[[], None]) -> None:
        """All of a transaction or nothing, although three brokers lead its partitions."""
        while not self.ending.wait(0.5):
            try:
                rows = sparklog.read_table(
                    self.bootstrap, f"transactions-{self.name}", columns=["value"], isolation_level="read_committed"
                ).num_rows
            except sparklog.errors.SparklogError as e:
                if self.name == "previous" and e.retriable:
                    continue  # a defect of that release: it did not ask again where the leader is
                raise
            assert rows % PER_TRANSACTION == 0, f"{rows} rows are not whole transactions"
            done()

    def answer(self, line: str) -> dict[str, Any]:
        order, _, rest = line.partition(" ")
        if order == "end":
            self.ending.set()
            for name in ("send", "transact", "snapshot"):
                self.threads[name].join(PATIENCE_S)
            return {"failed": self.failed, "sent": self.sent}
        if order == "read":
            self.wanted = json.loads(rest)
            self.threads["consume"].join(PATIENCE_S)
            return {"failed": self.failed, "read": self.read}
        return {"failed": self.failed, "rounds": self.rounds}


def main() -> None:
    bootstrap, name, topics = sys.argv[1:]
    client = Client(bootstrap, name, topics.split(","))
    for work in ("send", "transact", "consume", "snapshot"):
        client.run(work, getattr(client, work))
    for line in sys.stdin:
        print(json.dumps({"release": str(sparklog.__file__), "at": time.time(), **client.answer(line.strip())}))
        sys.stdout.flush()
        if line.startswith("read "):
            return


if __name__ == "__main__":
    main()
