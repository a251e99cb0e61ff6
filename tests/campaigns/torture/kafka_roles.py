"""Roles of clients that speak Kafka's protocol: librdkafka through the gateway, with the same histories as the others.

An error of librdkafka that ends a life is raised as a SparklogError, so that the campaign starts the next life.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from sparklog.errors import UnknownServerError
from tests.campaigns.checker import generate
from tests.campaigns.checker.history import UNKNOWN_OFFSET, Kind, Outcome
from tests.campaigns.torture.client import Life, partition_of

GROUPS = {"kafka_pipeline": "kafka-pipeline"}
CALLS_IN_FLIGHT = 8
CALL_S = 30.0
POLL_S = 0.2
POLL_RECORDS_MAX = 1_000
DELIVERY_MS = 120_000

Role = Callable[[Life], None]


def kafka(role: Role) -> Role:
    """A role whose errors of librdkafka end the life."""

    @functools.wraps(role)
    def guarded(life: Life) -> None:
        try:
            role(life)
        except KafkaException as e:
            raise UnknownServerError(f"librdkafka: {e}") from e

    return guarded


def settings_of(life: Life, **more: Any) -> dict[str, Any]:
    """Settings of a client. Its unused connections close before the metadata are read again: librdkafka's
    send_offsets_to_transaction waits for a connection to open or close, without a timeout, if the metadata have lost
    the broker of the group's coordinator (librdkafka's issues 5456 and 5511)."""
    return {
        "bootstrap.servers": life.told.settings["kafka"],
        "log_level": 0,
        "reconnect.backoff.max.ms": 1_000,
        "topic.metadata.refresh.interval.ms": 5_000,
        "connections.max.idle.ms": 3_000,
        **more,
    }


def offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


class Call:
    """Records of one call, and the offsets that they are acknowledged with."""

    def __init__(self, producer: Producer, partition: str, values: Sequence[int]) -> None:
        self.offsets = [UNKNOWN_OFFSET] * len(values)
        self.left = len(values)
        self.failed = False
        tp = partition_of(partition)
        for i, value in enumerate(values):
            producer.produce(tp.topic, str(value).encode(), partition=tp.partition, on_delivery=self._note(i))

    def _note(self, place: int) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, message: Message) -> None:
            self.left -= 1
            if error is None:
                self.offsets[place] = offset_of(message)
            else:
                self.failed = True

        return note


@kafka
def kafka_producer(life: Life) -> None:
    """Send without transactions, several calls under way, with acks=all."""
    told, history = life.told, life.history
    values = generate.unique_values(told.number)
    client = Producer(
        settings_of(life, **{"enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": DELIVERY_MS})
    )
    waiting: deque[tuple[int, Call]] = deque()

    def settle() -> None:
        operation, call = waiting.popleft()
        while call.left:
            client.poll(POLL_S)
        history.end(operation, Outcome.UNKNOWN if call.failed else Outcome.OK, [call.offsets])

    for intent in life.while_wanted(generate.sends(told.seed, told.number, told.inputs)):
        mine = [next(values) for _ in range(intent.records)]
        operation = history.begin(Kind.SEND, [(intent.partition, mine)])
        waiting.append((operation, Call(client, intent.partition, mine)))
        client.poll(0)
        while len(waiting) > CALLS_IN_FLIGHT or (waiting and not waiting[0][1].left):
            settle()
    while waiting:
        settle()


@kafka
def kafka_transactional(life: Life) -> None:
    """Send in transactions, a part of which it aborts. The next life has the same transactional id."""
    told, history = life.told, life.history
    values = generate.unique_values(told.number)
    client = transactional_producer(life)
    for intent in life.while_wanted(generate.transactions(told.seed, told.number, told.inputs)):
        operation = history.begin(Kind.TRANSACTION)
        client.begin_transaction()
        calls = []
        for send in intent.sends:
            mine = [next(values) for _ in range(send.records)]
            history.sends(operation, [(send.partition, mine)])
            with abortable(life) as outcome:
                calls.append(Call(client, send.partition, mine))
            if outcome.failed:
                break
        end_transaction(life, client, operation, calls, commit=intent.commit and not outcome.failed)


def transactional_producer(life: Life) -> Producer:
    client = Producer(
        settings_of(
            life,
            **{
                "transactional.id": f"{life.told.role}-{life.told.slot}",
                "transaction.timeout.ms": 10_000,
                "linger.ms": 2,
            },
        )
    )
    again(lambda: client.init_transactions(CALL_S), life)
    return client


class Attempt:
    """Outcome of a call inside a transaction."""

    failed = False


@contextmanager
def abortable(life: Life) -> Iterator[Attempt]:
    """Notes an error after which the transaction has to be aborted; raises the others."""
    found = Attempt()
    try:
        yield found
    except KafkaException as e:
        if e.args[0].fatal():
            raise
        life.note(f"a call in a transaction failed: {e}")
        found.failed = True


def again(call: Callable[[], None], life: Life) -> None:
    """Make a call until its outcome is known. Raises errors that another call cannot mend."""
    while True:
        try:
            return call()
        except KafkaException as e:
            if not e.args[0].retriable():
                raise
            life.note(f"again: {e}")
            if life.stopping:
                raise


def end_transaction(life: Life, client: Producer, operation: int, calls: Sequence[Call], *, commit: bool) -> bool:
    """End a transaction; returns True if it is committed. An error that only a new producer can mend ends the life."""
    history = life.history
    history.ending(operation, commit=commit)
    if commit:
        try:
            again(lambda: client.commit_transaction(CALL_S), life)
        except KafkaException as e:
            if not e.args[0].txn_requires_abort():
                raise
            life.note(f"a commit failed: {e}")
        else:
            history.end(operation, Outcome.OK, [call.offsets for call in calls])
            return True
    again(lambda: client.abort_transaction(CALL_S), life)
    history.end(operation, Outcome.FAILED)
    return False


def polls_of(messages: Sequence[Message], life: Life) -> list[tuple[str, list[int], list[int]]]:
    """(partition, offsets, values) of the messages, partition by partition."""
    found: dict[str, tuple[str, list[int], list[int]]] = {}
    for message in messages:
        error = message.error()
        if error is not None:
            if error.fatal():
                raise KafkaException(error)
            if error.code() != KafkaError._PARTITION_EOF:
                life.note(f"a consumer was told: {error}")
            continue
        partition = f"{message.topic()}-{message.partition()}"
        _, offsets, values = found.setdefault(partition, (partition, [], []))
        offsets.append(offset_of(message))
        values.append(int(message.value() or b""))
    return list(found.values())


def note_assignment(life: Life, offsets: dict[str, int]) -> None:
    life.history.end(life.history.begin(Kind.ASSIGN, offsets=offsets), Outcome.OK)


def note_poll(life: Life, polls: Sequence[Any]) -> None:
    if polls:
        operation = life.history.begin(Kind.POLL)
        life.history.polls(operation, polls)
        life.history.end(operation, Outcome.OK)


def consumer_of(life: Life, **more: Any) -> Consumer:
    return Consumer(
        settings_of(
            life,
            **{
                "group.id": GROUPS.get(life.told.role, life.told.name),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
                "enable.partition.eof": True,
                **more,
            },
        )
    )


@kafka
def kafka_pipeline(life: Life) -> None:
    """Consume, transform, produce: one output for each input, with the offsets in one transaction."""
    told, history = life.told, life.history
    values = generate.unique_values(told.number)
    producer, consumer = transactional_producer(life), consumer_of(life)

    def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
        note_assignment(life, {f"{p.topic}-{p.partition}": -1 for p in partitions})

    consumer.subscribe(sorted({partition_of(p).topic for p in told.inputs}), on_assign=assigned)
    try:
        for intent in life.while_wanted(generate.pipelines(told.seed, told.number, told.outputs)):
            polls = polls_of(consumer.consume(intent.records_max, POLL_S), life)
            if not polls:
                continue
            sources = [value for _, _, polled in polls for value in polled]
            mine = [next(values) for _ in sources]
            positions = {partition: offsets[-1] + 1 for partition, offsets, _ in polls}
            operation = history.begin(Kind.TRANSACTION)
            history.polls(operation, polls)
            history.sends(operation, [(intent.partition, mine, sources)])
            history.offsets(operation, positions)
            producer.begin_transaction()
            calls: list[Call] = []
            with abortable(life) as outcome:
                calls.append(Call(producer, intent.partition, mine))
                offsets = [TopicPartition(*partition_of(p), o) for p, o in positions.items()]
                producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), CALL_S)
            commit = intent.commit and not outcome.failed
            if not end_transaction(life, producer, operation, calls, commit=commit):
                go_back(life, consumer, {p: offsets[0] for p, offsets, _ in polls})
    finally:
        consumer.close()


def go_back(life: Life, consumer: Consumer, offsets: dict[str, int]) -> None:
    """Seek to the first record that an aborted transaction had read, in partitions that are still assigned."""
    mine = {f"{p.topic}-{p.partition}" for p in consumer.assignment()} & offsets.keys()
    for partition in mine:
        try:
            consumer.seek(TopicPartition(*partition_of(partition), offsets[partition]))
        except KafkaException as e:  # the group has taken it away meanwhile
            life.note(f"no seek to {partition}: {e}")
    note_assignment(life, {p: offsets[p] for p in mine})


@kafka
def kafka_assigned(life: Life) -> None:
    """Read all partitions, as long as it is wanted."""
    told = life.told
    partitions = [*told.inputs, *told.outputs]
    consumer = consumer_of(life)
    consumer.assign([TopicPartition(*partition_of(p), OFFSET_BEGINNING) for p in partitions])
    note_assignment(life, dict.fromkeys(partitions, 0))
    for _ in life.while_wanted(generate.polls(told.seed, told.number)):
        note_poll(life, polls_of(consumer.consume(POLL_RECORDS_MAX, POLL_S), life))
    consumer.close()


@kafka
def kafka_last(life: Life) -> None:
    """After all is healed: read everything up to the given offsets."""
    until = life.told.until
    assert until is not None
    consumer = consumer_of(life)
    consumer.assign([TopicPartition(*partition_of(p), OFFSET_BEGINNING) for p in until])
    note_assignment(life, dict.fromkeys(until, 0))
    left = {partition for partition, end in until.items() if end}
    while left:
        if life.stopping:
            return
        messages = consumer.consume(POLL_RECORDS_MAX, POLL_S)
        note_poll(life, polls_of(messages, life))
        for message in messages:
            error, partition = message.error(), f"{message.topic()}-{message.partition()}"
            if (
                error is not None
                and error.code() == KafkaError._PARTITION_EOF
                and offset_of(message) >= until[partition]
            ):
                left.discard(partition)
    consumer.close()
    life.history.end(life.history.begin(Kind.FINAL, offsets=until), Outcome.OK)
