"""The broker, or cluster, that a test session shares: its topics, records and faults, and its time."""

from __future__ import annotations

import http.client
import json
import math
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from sparklog_broker.testing.faults import wrong_field

from sparklog.client.admin.admin import Admin
from sparklog.client.local import LocalBroker, start_broker
from sparklog.client.local_cluster import LAYOUT_FILE, LocalCluster, start_cluster
from sparklog.client.producer.producer import Producer
from sparklog.client.reading.read_table import read_table
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.testing._rows import rows_of, rows_of_arrow
from sparklog.times import time_ms_of
from sparklog.types import TopicPartition
from sparklog.units import parse_duration_ms

START_TIMEOUT_S = 180.0
"""The longest wait for the start of a broker in s: machines of CI can be slow."""
ORDER_TIMEOUT_S = 60.0
ACKNOWLEDGED_S = 60.0
ADDRESS_VARIABLES = ("SPARKLOG_BOOTSTRAP_SERVERS", "KAFKA_BOOTSTRAP_SERVERS")
ENVELOPE_BYTES = ("key", "value")
Duration = str | timedelta | float


def duration_ms(duration: Duration) -> int:
    """Return a duration in ms: a text such as "8 days", a timedelta, or seconds. Raises ValueError."""
    if isinstance(duration, str):
        return parse_duration_ms(duration)
    seconds: Any = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise ValueError(f'duration = {duration!r}: a text such as "8 days", a timedelta, or seconds, not below 0')
    return round(seconds * 1000)


class Faults:
    """Faults of the brokers under test, ordered by name. They end with the test."""

    def __init__(self, broker: KitBroker) -> None:
        """Use the fixture `faults` instead.

        Args:
            broker: The brokers.
        """
        self._broker = broker

    def refuse(self, api: str, *, error: str, times: int = 1) -> None:
        """Let requests be answered with an error. They are not carried out.

        Args:
            api: The name of the request in the protocol, such as "PRODUCE" or "FETCH"; "COMMIT" stands for commits of
                offsets and ends of transactions.
            error: The name of the error, such as "NOT_LEADER".
            times: Number of requests to each broker; 0: all of this test.

        Raises:
            InvalidRequestError: No request or no error has the name.
        """
        self._broker.order("POST", "/faults", fault="refuse", api=api, error=error, times=times)

    def slow(self, api: str, *, seconds: float, times: int = 0) -> None:
        """Let requests wait before they are carried out.

        Args:
            api: The name of the request, as for `refuse`.
            seconds: The wait of each request.
            times: Number of requests to each broker; 0: all of this test.

        Raises:
            InvalidRequestError: No request has the name, or the wait is out of bounds.
        """
        self._broker.order("POST", "/faults", fault="slow", api=api, seconds=seconds, times=times)

    def disconnect(self, *, after_bytes: int, api: str = "FETCH", times: int = 1) -> None:
        """Let connections end in the middle of a response.

        Args:
            after_bytes: Number of bytes of the response that arrive.
            api: The name of the request, as for `refuse`.
            times: Number of requests to each broker; 0: all of this test.

        Raises:
            InvalidRequestError: No request has the name.
        """
        self._broker.order("POST", "/faults", fault="disconnect", after_bytes=after_bytes, api=api, times=times)

    def lose_response(self, api: str, *, times: int = 1) -> None:
        """Let requests be carried out, and end the connection in place of the response.

        Args:
            api: The name of the request, as for `refuse`.
            times: Number of requests to each broker; 0: all of this test.

        Raises:
            InvalidRequestError: No request has the name.
        """
        self._broker.order("POST", "/faults", fault="lose_response", api=api, times=times)

    def full_disk(self) -> None:
        """Let all writes to the brokers' disks fail for lack of space, until `clear`."""
        self._broker.order("POST", "/faults", fault="full_disk")

    def clear(self) -> None:
        """End all faults. Leaders that have moved stay where they are."""
        self._broker.order("DELETE", "/faults")

    def move_leader(self, topic: str, partition: int = 0) -> int:
        """Let another replica lead a partition. The test needs `@pytest.mark.sparklog(brokers=3)`.

        Args:
            topic: The topic's name.
            partition: The partition's number.

        Returns:
            Id of the new leader.

        Raises:
            InvalidRequestError: The partition does not exist, has one replica only, or no other replica is in sync.
        """
        tp = TopicPartition(topic, partition)
        admin = self._broker.admin
        details = admin.describe_topic(topic).partition_details
        if partition not in range(len(details)):
            raise InvalidRequestError(f"partition = {partition!r}: {topic} has the partitions 0 to {len(details) - 1}")
        state = details[partition]
        others = [broker for broker in state.replicas if broker != state.leader]
        if not others:
            raise InvalidRequestError(f"{tp} has one replica: mark the test with @pytest.mark.sparklog(brokers=3)")
        in_sync = [broker for broker in others if broker in state.isr]
        if not in_sync:
            raise InvalidRequestError(
                f"{tp}: no other replica is in sync, of the brokers {', '.join(map(str, others))}: "
                "start them with broker.start(), or wait until they follow"
            )
        behind = [broker for broker in others if broker not in state.isr]
        admin.alter_partition_reassignments({tp: [*in_sync, *behind, state.leader]})
        admin.elect_leaders("preferred", [tp])
        return in_sync[0]

    def fence_producer(self, transactional_id: str) -> None:
        """Let a newer producer take over a transactional id: the older one is fenced from its next request on.

        Args:
            transactional_id: The `transactional_id` of the producer.

        Raises:
            InvalidRequestError: The id is no text, or is empty.
            SparklogError: The coordinator does not answer.
        """
        if not isinstance(transactional_id, str) or not transactional_id:
            raise InvalidRequestError(f"transactional_id = {transactional_id!r}: a text is needed, as of the producer")
        with Producer(self._broker.bootstrap_servers, transactional_id=transactional_id) as newer:
            newer.init_transactions()


class KitBroker:
    """A broker, or a cluster, that belongs to a test session."""

    def __init__(
        self,
        brokers: int = 1,
        *,
        kafka: bool = False,
        settings: Mapping[str, object] | None = None,
        directory: Path | None = None,
    ) -> None:
        """Start it. Tests use the fixtures `sparklog_broker` and `kafka_broker` instead.

        Args:
            brokers: Number of brokers; more than one needs Java and `sparklog[cluster]`.
            kafka: True for a gateway for Kafka's clients beside each broker.
            settings: Broker settings by their dotted names. None: the defaults.
            directory: An empty directory for the data, which `stop` removes. None: a temporary one.

        Raises:
            BrokerNotAvailableError: A broker did not start.
            InvalidConfigError: A setting is wrong, or a cluster lacks Java.
        """
        self._count = brokers
        self._kafka = kafka
        self._settings = dict(settings or {})
        self._directory = Path(tempfile.mkdtemp(prefix="sparklog-kit-")) if directory is None else directory
        self._is_marked = False
        """True if the test has ordered faults."""
        self._ahead_ms = 0
        """Time in ms that the test has let pass."""
        self._topics: list[str] = []
        """Topics of `create_topic`."""
        self._shared: list[str] | None = None
        """Topics of the fixture for several tests that is being set up; None at other times."""
        self._kept: frozenset[str] = frozenset()
        """Topics that were there when the test began, and stay."""
        self._admin: Admin | None = None
        self._producer: Producer | None = None
        self._before = {name: os.environ.get(name) for name in ADDRESS_VARIABLES}
        self._process: LocalBroker | LocalCluster = self._start()
        self.bootstrap_servers = self._process.bootstrap_servers
        """Address of the broker, or addresses of the cluster's brokers."""
        self.kafka_bootstrap_servers = self._process.kafka_bootstrap_servers
        """The same for Kafka's clients; empty without a gateway."""
        self.faults = Faults(self)
        """The faults that tests can order."""
        self._publish()

    def _start(self, listen: str = "127.0.0.1:0", **more: object) -> LocalBroker | LocalCluster:
        settings = {**self._settings, **more}
        if self._count == 1:
            return start_broker(
                self._directory / "data",
                listen,
                settings=settings,
                timeout_s=START_TIMEOUT_S,
                kafka=self._kafka,
                testing=True,
            )
        return start_cluster(
            self._count,
            self._directory / "data",
            settings=settings,
            timeout_s=START_TIMEOUT_S,
            kafka=self._kafka,
            testing=True,
        )

    def _publish(self) -> None:
        """Take over the addresses of the processes, and put them into the environment."""
        self.bootstrap_servers = self._process.bootstrap_servers
        self.kafka_bootstrap_servers = self._process.kafka_bootstrap_servers
        for name, value in zip(ADDRESS_VARIABLES, (self.bootstrap_servers, self.kafka_bootstrap_servers), strict=True):
            if value:
                os.environ[name] = value

    @property
    def brokers(self) -> Sequence[Any]:
        """The brokers of a cluster, which can `kill`, `stop` and `start`; empty for one broker."""
        return self._process.brokers if isinstance(self._process, LocalCluster) else ()

    @property
    def log(self) -> str:
        """The last lines of the broker's log."""
        return "\n".join(b.log for b in self.brokers) if self._count > 1 else self._process.log  # type: ignore[union-attr]

    @property
    def admin(self) -> Admin:
        """A client for administration, which the session shares."""
        if self._admin is None:
            self._admin = Admin(self.bootstrap_servers)
        return self._admin

    # -- topics and records

    def create_topic(self, name: str, ddl: Any = None, partitions: int = 1, **options: Any) -> str:
        """Create a topic that is deleted at the end of the test, or of the fixture for several tests that creates it.

        Args:
            name: The topic's name.
            ddl: Its columns as Spark writes them, "user STRING, at TIMESTAMP". None: an envelope topic with key and
                value.
            partitions: Number of partitions.
            **options: Further arguments of `Admin.create_topic`, such as `key_columns` and `configs`.

        Returns:
            The name.

        Raises:
            TopicAlreadyExistsError: The test, or a program under test, has created the topic.
            SparklogError: A column or a setting is wrong.
        """
        if self._count > 1:
            options = {"replication_factor": min(3, self._count)} | options
        self.admin.create_topic(name, partitions=partitions, schema=ddl, **options)
        (self._topics if self._shared is None else self._shared).append(name)
        return name

    @contextmanager
    def sharing_topics(self) -> Iterator[list[str]]:
        """Let the topics of `create_topic` outlive the test, while a fixture for several tests is set up. Yields the
        list of their names."""
        before, self._shared = self._shared, []
        try:
            yield self._shared
        finally:
            self._shared = before

    def delete_topic(self, name: str) -> None:
        """Delete a topic if it exists, and if the broker has not been stopped."""
        if any(broker.running for broker in self.brokers or [self._process]):
            with suppress(SparklogError):
                self.admin.delete_topic(name)

    def keep_topics(self) -> None:
        """Let the present topics outlive the test, except those of `create_topic`: fixtures have created them for all
        tests. Does nothing while faults are in effect, which the question could use up."""
        if not self._is_marked and all(broker.running for broker in self.brokers or [self._process]):
            self._kept = frozenset(self.admin.list_topics()) - frozenset(self._topics)

    def delete_topics(self) -> None:
        """End the faults, and delete the topics that the test and its programs have created."""
        if self._is_marked:
            self.faults.clear()
        self._topics.clear()
        for name in set(self.admin.list_topics()) - self._kept:
            with suppress(SparklogError):  # a program may delete it at the same time
                self.admin.delete_topic(name)

    def produce(self, topic: str, rows: Any, *, partition: int | None = None) -> None:
        """Append rows to a topic, in their order, and wait until they are stored.

        Args:
            topic: The topic's name.
            rows: Dicts by column, an Arrow table, or a DataFrame of pandas, polars or Spark. For an envelope topic also
                texts or bytes, which are values, and dicts with `key` and `value`; texts are encoded as UTF-8.
            partition: The partition of all rows. None: chosen by the key.

        Raises:
            InvalidRequestError: The argument is one row, not a list of rows.
            SchemaMismatchError: A row does not fit the topic's columns.
            SparklogError: The rows could not be stored.
        """
        if isinstance(rows, str | bytes | Mapping):
            raise InvalidRequestError(f"rows = {rows!r}: a list of rows is needed, such as [{rows!r}]")
        is_table = hasattr(rows, "columns") or hasattr(rows, "schema")
        if not is_table and not isinstance(rows, Iterable):
            raise InvalidRequestError(f"rows = {rows!r}: a list of rows is needed, such as [{{'id': 1}}]")
        listed = rows_of(rows) if is_table else list(rows)
        records = listed if self._is_typed(topic) else [_envelope(row) for row in listed]
        self.producer.send_batch(topic, records, partition=partition).result(ACKNOWLEDGED_S)

    def produce_table(self, topic: str, table: Any, *, partition: int) -> None:
        """Append an Arrow table to a partition, and wait until it is stored."""
        self.producer.send_batch(topic, table, partition=partition).result(ACKNOWLEDGED_S)

    @property
    def producer(self) -> Producer:
        """A producer, which the session shares."""
        if self._producer is None:
            self._producer = Producer(self.bootstrap_servers, linger_ms=0)
        return self._producer

    def rows(self, topic: str, **options: Any) -> list[dict[str, Any]]:
        """Return the rows of a topic, partition after partition.

        Args:
            topic: The topic's name.
            **options: Arguments of `read_table`, such as `columns`, `filter` and `include_metadata`.

        Returns:
            A dict by column for each row that is committed; a map is a dict, too.

        Raises:
            SparklogError: The topic cannot be read.
        """
        return rows_of_arrow(read_table(self.bootstrap_servers, topic, **options))

    def hide_row(self, topic: str) -> None:
        """Append a row in a transaction that is aborted: readers pass over it, so their next batch has no rows."""
        with Producer(self.bootstrap_servers, transactional_id=f"hidden-{uuid.uuid4().hex}") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            columns = self.admin.describe_topic(topic).schema.names
            producer.send_batch(topic, [dict.fromkeys(columns)]).result(ACKNOWLEDGED_S)
            producer.abort_transaction()

    def _is_typed(self, topic: str) -> bool:
        return self.admin.describe_topic(topic).kind == "typed"

    # -- time and faults

    def advance(self, duration: Duration) -> None:
        """Let time pass for the brokers at once: retention, sessions and timeouts that are due have happened on return.

        The clock of the test process, and those of the gateways, stay. The next test gets a new broker with the
        machine's time.

        Args:
            duration: A text such as "8 days", a timedelta, or seconds.

        Raises:
            ValueError: The duration is negative or no duration.
            InvalidRequestError: The time is too long, or no broker runs.
        """
        ms = duration_ms(duration)
        self.order("POST", "/clock", advance_ms=ms)
        self._ahead_ms += ms

    @property
    def now_ms(self) -> int:
        """The time of the brokers in ms since 1970."""
        return round(time.time() * 1000) + self._ahead_ms

    def order(self, method: str, path: str, **body: object) -> list[Any]:
        """Give each running broker an order.

        Args:
            method: The HTTP method.
            path: The HTTP path.
            **body: The fields of the order.

        Returns:
            The answers.

        Raises:
            InvalidRequestError: A broker refuses the order, or no broker runs.
        """
        self._is_marked = method != "DELETE"
        running = [broker for broker in self.brokers or [self._process] if broker.running]
        if not running and method != "DELETE":
            raise InvalidRequestError(f"{method} {path}: no broker runs: call broker.start()")
        return [_order(broker.faults_address, method, path, body) for broker in running]

    # -- life

    def kill(self) -> None:
        """End all processes with SIGKILL, like a crash. `start` starts them again with the same data and addresses."""
        for broker in self.brokers or [self._process]:
            broker.kill()

    def start(self) -> None:
        """Start the brokers that do not run, with the same data and addresses, and the time that has passed.

        Raises:
            BrokerNotAvailableError: A broker did not start.
        """
        running = [broker for broker in self.brokers or [self._process] if broker.running]
        if isinstance(self._process, LocalCluster):
            self._process.start_missing()
        elif not self._process.running:
            self._process = self._start_again()
        if self._ahead_ms:
            for broker in self.brokers or [self._process]:
                if broker not in running:
                    _order(broker.faults_address, "POST", "/clock", {"advance_ms": self._ahead_ms})

    def _start_again(self) -> LocalBroker | LocalCluster:
        if self._count == 1 and self._kafka:
            return self._start(
                self.bootstrap_servers, **{"kafka.listeners": f"PLAINTEXT://{self.kafka_bootstrap_servers}"}
            )
        return self._start(self.bootstrap_servers)

    def reset(self) -> None:
        """End the effects of a test: its faults, its topics and those of its programs, its time, and its kills."""
        if self._ahead_ms:
            self._ahead_ms, self._is_marked = 0, False
            self._topics.clear()
            self._kept = frozenset()
            self._close_clients()
            self._process.stop()
            self._remove_data()
            self._process = self._start_again()
            self._publish()
            return
        self.start()
        self.delete_topics()

    def _remove_data(self) -> None:
        """Remove the data, but not the file with the ports of a cluster."""
        layout = self._directory / "data" / LAYOUT_FILE
        ports = layout.read_bytes() if layout.exists() else None
        shutil.rmtree(layout.parent, ignore_errors=True)
        if ports is not None:
            layout.parent.mkdir()
            layout.write_bytes(ports)

    def _close_clients(self) -> None:
        for client in (self._producer, self._admin):
            if client is not None:
                with suppress(SparklogError):
                    client.close()
        self._producer = self._admin = None

    def stop(self) -> None:
        """Stop all processes, and remove the data."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._close_clients()
        self._process.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> KitBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<KitBroker {self.bootstrap_servers}>"


def _envelope(row: Any) -> dict[str, Any]:
    """Return a row of an envelope topic, with its texts as bytes."""
    fields = dict(row) if isinstance(row, Mapping) else {"value": row}
    return {
        name: value.encode() if name in ENVELOPE_BYTES and isinstance(value, str) else value
        for name, value in fields.items()
    }


def _order(address: str, method: str, path: str, body: Mapping[str, object]) -> Any:
    """Send one order. Raises InvalidRequestError."""
    for name, value in body.items():
        is_text_or_number = isinstance(value, str | int | float) and value not in (math.inf, -math.inf)
        if not is_text_or_number or value != value:
            raise wrong_field(name, value)
    connection = http.client.HTTPConnection(address, timeout=ORDER_TIMEOUT_S)
    try:
        connection.request(method, path, json.dumps(body) if body else None)
        response = connection.getresponse()
        answer = json.loads(response.read())
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise InvalidRequestError(answer["error"])
    return answer


def moment_ms(moment: Any, now_ms: int) -> int:
    """Return a point in time in ms since 1970: a datetime, a text such as "2026-11-27T10:00" or "-1h", or ms. Raises
    InvalidRequestError."""
    if isinstance(moment, bool) or not isinstance(moment, int | str | date):
        raise InvalidRequestError(
            f'moment = {moment!r}: a datetime, a text such as "2026-11-27T10:00Z", or ms since 1970 is needed'
        )
    return moment if isinstance(moment, int) else time_ms_of(moment, now_ms)
