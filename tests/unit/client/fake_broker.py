"""A broker in a thread that keeps batches in memory and causes faults on request."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparklog.errors import LocalReadUnavailableError, OffsetOutOfRangeError, SparklogError
from sparklog.format.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BatchHeader,
    decode_header,
    iterate_batches,
    stamp_batch,
)
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.producers.states import ProducerStates
from sparklog.protocol import frames
from sparklog.protocol import group_messages as groups
from sparklog.protocol import messages as m
from sparklog.protocol import topic_messages as topics
from sparklog.protocol import transaction_messages as txn
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.codec import decode_request, encode, older_version

DROP = "drop"
"""Close the connection instead of answering."""
DROP_AFTER = "drop after"
"""Execute the request, then close the connection instead of answering."""
SILENT = "silent"
"""Never answer."""

Hook = Callable[[Api, Any], "str | int | None"]


class FakeBroker:
    """`hook(api, message)` runs before each request: None answers it, a code answers with that error for the request
    (for PRODUCE and FETCH: for each partition), DROP and SILENT as they say. With `data_dir` it offers its log as
    files there."""

    data_dir: Path | None = None
    broker_id = 0

    def __init__(self, partitions: int = 1, port: int = 0) -> None:
        self.hook: Hook = lambda api, message: None
        self.apis = {api: (spec.version_min, spec.version_max) for api, spec in APIS.items()}
        """The APIs and versions in its handshake."""
        self.topics: dict[str, topics.TopicState] = {}
        self.logs: dict[tuple[str, int], list[bytearray]] = {}
        self.requests: list[tuple[Api, Any]] = []
        self.connections = 0
        self.log_start: dict[tuple[str, int], int] = {}
        self.producers: dict[tuple[str, int], ProducerStates] = {}
        self.next_producer_id = 1000
        self.transactions: dict[str, int] = {}
        self.is_mute = False
        """True if it answers nothing any more, not even earlier requests."""
        self.offset_code = 0
        self.fetch_codes: dict[tuple[str, int], int] = {}
        """Errors that single partitions answer a FETCH with."""
        self.committed = False
        self.stable: dict[tuple[str, int], int] = {}
        """Last stable offsets, where a transaction is open."""
        self.aborted: dict[tuple[str, int], list[m.AbortedRange]] = {}
        self.answers_at_once: dict[Api, int] = {}
        """So many answers on a connection are sent in one piece."""
        self.data_dir_id = "the fake's"
        self._files = itertools.count()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closing = False
        self._appended = threading.Condition()
        self.add_topic("events", partitions)
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._start(self._accept)

    def add_topic(self, name: str, partitions: int, schema: Any = None, **facts: Any) -> None:
        self.topics[name] = topics.TopicState(
            0,
            name,
            topic_id=f"id-{name}",
            kind="envelope" if schema is None else "typed",
            partitions=[topics.PartitionState(p, 0, 0, [0], [0]) for p in range(partitions)],
            partition_count=partitions,
            schemas=[topics.SchemaVersion(1, (schema or ENVELOPE_SCHEMA).serialize().to_pybytes())],
            **facts,
        )
        for p in range(partitions):
            self.logs[(name, p)] = []

    def headers(self, topic: str = "events", partition: int = 0) -> list[BatchHeader]:
        return [decode_header(b) for b in self.logs[(topic, partition)]]

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            sockets = list(self._sockets)
        for s in sockets:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
        with self._appended:
            self._appended.notify_all()
        for t in list(self._threads):
            t.join(30)

    def close_connections(self) -> None:
        """It goes on listening."""
        with self._lock:
            for s in self._sockets:
                with contextlib.suppress(OSError):
                    s.shutdown(socket.SHUT_RDWR)

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with self._lock:
                    self._sockets.append(connection)
                    self.connections += 1
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        held: list[bytes] = []
        with connection, contextlib.suppress(OSError, EOFError):
            while not self._closing:
                prefix = frames.decode_request_prefix(_read(connection, 16), 1 << 30)
                body = _read(connection, prefix.body_bytes)
                api = Api(prefix.api)
                message = decode_request(prefix.api, prefix.version, body[: prefix.header_bytes])
                self.requests.append((api, message))
                verdict = self.hook(api, message)
                if verdict == DROP_AFTER:
                    self._answer(api, message, body[prefix.header_bytes :], 0)
                if verdict in (DROP, DROP_AFTER):
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                if verdict == SILENT or self.is_mute:
                    continue
                code = verdict if isinstance(verdict, int) else self._refusal(api, message)
                if code and api not in (Api.PRODUCE, Api.FETCH):
                    header = encode(m.ErrorBody("as told"))
                    connection.sendall(frames.encode_response(api, code, prefix.correlation_id, header))
                    continue
                answer, payload = self._answer(api, message, body[prefix.header_bytes :], code)
                if answer is None or self.is_mute:
                    continue
                header = encode(answer, older_version(api, prefix.version))
                held.append(frames.encode_response(api, 0, prefix.correlation_id, header, len(payload)) + payload)
                if len(held) >= self.answers_at_once.get(api, 1):
                    connection.sendall(b"".join(held))
                    held.clear()

    def _answer(self, api: Api, message: Any, payload: bytearray, code: int) -> tuple[Any, bytes]:
        if api is Api.HANDSHAKE:
            apis = [m.ApiRange(int(a), *versions) for a, versions in self.apis.items()]
            return m.HandshakeResponse(self.broker_id, "cluster", "0", apis, 100 * 2**20), b""
        if api is Api.METADATA:
            names = list(self.topics) if message.topics is None else message.topics
            states = [self.topics.get(n, topics.TopicState(3, n)) for n in names]
            return topics.MetadataResponse(
                "cluster", 0, [topics.BrokerEndpoint(0, "127.0.0.1", self.port)], states
            ), b""
        if api is Api.FIND_COORDINATOR:
            return groups.FindCoordinatorResponse(0), b""
        if api is Api.OFFSET_FETCH:
            return groups.OffsetFetchResponse([]), b""
        if api is Api.INIT_PRODUCER_ID and message.transactional_id is not None:
            self.transactions[message.transactional_id] = self.transactions.get(message.transactional_id, -1) + 1
            return txn.InitProducerIdResponse(500, self.transactions[message.transactional_id]), b""
        if api is Api.END_TXN:
            ended = (message.producer_id, message.producer_epoch + 1)
            self.transactions[message.transactional_id] = message.producer_epoch + 1
            for known in self.producers.values():
                if known.get(message.producer_id) is not None:
                    attributes = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL
                    known.apply(BatchHeader(0, 0, 0, 0, attributes, 1, 0, 0, 0, 0, *ended, 0, 0, 0, 0))
            return txn.EndTxnResponse(*ended), b""
        if api is Api.TXN_OFFSET_COMMIT:
            return groups.TxnOffsetCommitResponse(
                [groups.OffsetResult(o.topic, o.partition, self.offset_code) for o in message.offsets]
            ), b""
        if api is Api.INIT_PRODUCER_ID:
            self.next_producer_id += 1
            return txn.InitProducerIdResponse(self.next_producer_id, 0), b""
        if api is Api.JOIN_SHARED_TXN:
            joined = (True,) if self.committed else (False, 77, 0)
            return txn.JoinSharedTxnResponse(*joined), b""
        if api is Api.RENEW_SHARED_TXN:  # also of an earlier test: its lease keeper can outlive it, and reach this port
            return txn.RenewSharedTxnResponse(known=False, is_open=False), b""
        if api is Api.END_SHARED_TXN:
            return txn.EndSharedTxnResponse(message.committed), b""
        if api is Api.LIST_OFFSETS:
            return m.ListOffsetsResponse([self._offset(p, message.isolation) for p in message.partitions]), b""
        if api is Api.DELETE_RECORDS:
            return m.DeleteRecordsResponse([self._delete(p) for p in message.partitions]), b""
        if api is Api.DESCRIBE_PRODUCERS:
            return txn.DescribeProducersResponse([]), b""
        if api is Api.ABORT_TRANSACTION:
            return txn.AbortTransactionResponse(1), b""
        if api is Api.PRODUCE:
            results = self._produce(message, payload, code)
            return (None, b"") if message.acks == 0 else (m.ProduceResponse(results), b"")
        if api is Api.FETCH:
            return self._fetch(message, code)
        if api is Api.LOCATE_SEGMENTS:
            return self._locate(message), b""
        raise AssertionError(api)

    def end(self, key: tuple[str, int]) -> int:
        log = self.logs[key]
        return decode_header(log[-1]).next_offset if log else self.log_start.get(key, 0)

    def _end(self, key: tuple[str, int], isolation: int) -> int:
        return min(self.end(key), self.stable.get(key, 2**62)) if isolation else self.end(key)

    def _offset(self, asked: m.ListOffsetsPartition, isolation: int) -> m.ListOffsetsResult:
        key = (asked.topic, asked.partition)
        offset = self.log_start.get(key, 0) if asked.timestamp_ms == -2 else self._end(key, isolation)
        return m.ListOffsetsResult(*key, 0, offset, -1)

    def _delete(self, asked: m.DeleteRecordsPartition) -> m.DeleteRecordsResult:
        key = (asked.topic, asked.partition)
        if asked.before_offset > self.end(key):
            return m.DeleteRecordsResult(*key, OffsetOutOfRangeError.code)
        self.log_start[key] = self.end(key) if asked.before_offset < 0 else asked.before_offset
        return m.DeleteRecordsResult(*key, 0, self.log_start[key])

    def append(self, data: bytearray, topic: str = "events", partition: int = 0) -> int:
        """Appends one batch; returns its base offset."""
        key = (topic, partition)
        with self._appended:
            base = self.end(key)
            header = decode_header(data)
            stamp_batch(data, 0, header, base_offset=base, leader_epoch=0, append_time_ms=77)
            self.logs[key].append(data)
            self._appended.notify_all()
        return base

    def _produce(self, message: m.ProduceRequest, payload: bytearray, code: int) -> list[m.ProduceResult]:
        results, start = [], 0
        for part in message.partitions:
            data = payload[start : start + part.length_bytes]
            start += part.length_bytes
            results.append(self._produce_partition(part, data, code))
        return results

    def _produce_partition(self, part: m.ProducePartition, data: bytearray, code: int) -> m.ProduceResult:
        key = (part.topic, part.partition)
        if code:
            return m.ProduceResult(*key, code, -1, 77, 0, "as told")
        batches = [data[at : at + h.size_bytes] for at, h in iterate_batches(data)]
        with self._appended:
            states = self.producers.setdefault(key, ProducerStates())
            try:
                known = states.admit([decode_header(b) for b in batches], self.end(key), None, verified=True)
            except SparklogError as e:
                return m.ProduceResult(*key, e.code, -1, 77, 0, str(e))
            offsets = []
            for batch, original in zip(batches, known, strict=True):
                offsets.append(self.append(batch, *key) if original is None else original.base_offset)
                if original is None:
                    states.apply(decode_header(batch))
        return m.ProduceResult(*key, 0, offsets[0], 77, 0, base_offsets=offsets if any(known) else [])

    def _refusal(self, api: Api, message: Any) -> int:
        if api is not Api.LOCATE_SEGMENTS:
            return 0
        if self.data_dir is None:
            return LocalReadUnavailableError.code
        key = (message.topic, message.partition)
        inside = self.log_start.get(key, 0) <= message.start_offset <= self.end(key)
        return 0 if inside else OffsetOutOfRangeError.code

    def _locate(self, message: m.LocateSegmentsRequest) -> m.LocateSegmentsResponse:
        """Write the requested records into a new file."""
        assert self.data_dir is not None
        key = (message.topic, message.partition)
        with self._appended:
            stop = min(message.end_offset, self._end(key, message.isolation))
            headers = [decode_header(b) for b in self.logs[key]]
            chosen = [
                (h, bytes(b))
                for h, b in zip(headers, self.logs[key], strict=True)
                if h.next_offset > message.start_offset and h.base_offset < stop
            ]
        (self.data_dir / "meta.json").write_text(json.dumps({"data_dir_id": self.data_dir_id}))
        path = self.data_dir / f"{message.topic}-{message.partition}" / f"{next(self._files)}.arrow"
        path.parent.mkdir(exist_ok=True)
        head = b"not of the range"
        path.write_bytes(head + b"".join(b for _, b in chosen) + head)
        size = len(head) + sum(len(b) for _, b in chosen)
        ranges = [m.SegmentRange(str(path), 1, 0, len(head), size, chosen[0][0].base_offset)] if chosen else []
        aborted = self.aborted.get(key, []) if message.isolation else []
        return m.LocateSegmentsResponse(
            str(self.data_dir),
            "the fake's",
            self.end(key),
            self.log_start.get(key, 0),
            ranges,
            self._end(key, 1),
            aborted,
        )

    def _fetch(self, message: m.FetchRequest, code: int) -> tuple[m.FetchResponse, bytes]:
        results, payload = [], b""
        with self._appended:
            if message.max_wait_ms and not any(
                self._end((p.topic, p.partition), message.isolation) > p.fetch_offset for p in message.partitions
            ):
                self._appended.wait(message.max_wait_ms / 1000)
        for part in message.partitions:
            key = (part.topic, part.partition)
            end, start = self.end(key), self.log_start.get(key, 0)
            stable = self._end(key, 1)
            failed = code or self.fetch_codes.get(key) or (0 if start <= part.fetch_offset <= end else 1)
            data = b""
            if not failed:
                for batch in self.logs[key]:
                    if decode_header(batch).next_offset > self._end(key, message.isolation):
                        break
                    if decode_header(batch).next_offset > part.fetch_offset:
                        if data and len(data) + len(batch) > part.max_bytes:
                            break
                        data += bytes(batch)
            aborted = self.aborted.get(key, []) if data and message.isolation else []
            text = "as told" if failed else ""
            results.append(m.FetchResult(*key, failed, end, stable, start, len(data), text, aborted))
            payload += data
        return m.FetchResponse(results), payload


def _read(connection: socket.socket, size: int) -> bytearray:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(min(1 << 20, size - len(data)))
        if not chunk:
            raise EOFError
        data += chunk
    return data


def garbage_server(reply: bytes) -> tuple[socket.socket, str]:
    """A server that answers every first request with `reply` and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError, EOFError):
                    (length,) = struct.unpack("<I", _read(connection, 4))
                    _read(connection, length)
                    connection.sendall(reply)

    threading.Thread(target=serve, daemon=True).start()
    return listener, f"127.0.0.1:{listener.getsockname()[1]}"
