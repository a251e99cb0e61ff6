"""What the broker itself can do, measured with a client that does next to nothing.

    python tests/benchmarks/broker_raw.py [--bootstrap-server HOST:PORT]

Starts a broker of its own on a temporary directory unless it is given one. Prints: start time and idle memory, time per
tiny request, produce with batches of several sizes, fetch against a plain `sendfile` loop in the same run (interleaved;
the median of the rounds). All on one machine: client and broker share the processors.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from sparklog.errors import error_from_code
from sparklog.format.batch import encode_batch
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.protocol.base import Message
from sparklog.protocol.frames import PREFIX_BYTES, decode_response_prefix, encode_request
from sparklog.protocol.messages import (
    APIS,
    Api,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    HandshakeRequest,
    HandshakeResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    decode_error,
    decode_response,
    encode,
)
from sparklog.protocol.topic_messages import (
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
)

MIB = 1024 * 1024
FRAME_BYTES_MAX = 1 << 30
M = TypeVar("M", bound=Message)


class RawClient:
    """One connection, blocking, without any of the real client's care."""

    def __init__(self, host: str, port: int, timeout_s: float = 30.0, buffer_bytes: int = MIB) -> None:
        self.sock = socket.create_connection((host, port), timeout_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0
        self._buffer = bytearray(buffer_bytes)  # grows to the largest response

    def send(self, api: Api, message: Message, payload: bytes | memoryview = b"") -> None:
        self._correlation_id += 1
        head = encode_request(api, APIS[api].version_max, self._correlation_id, encode(message), len(payload))
        self.sock.sendmsg([head]) if not payload else self._send_both(head, payload)

    def _send_both(self, head: bytes, payload: bytes | memoryview) -> None:
        sent = self.sock.sendmsg([head, payload])
        if sent < len(head) + len(payload):
            self.sock.sendall(memoryview(payload)[max(sent - len(head), 0) :])

    def receive(self, api: Api, response_type: type[M]) -> tuple[M, memoryview]:
        """The response and its payload, which is overwritten by the next one. Raises the broker's error."""
        prefix = decode_response_prefix(self._read(PREFIX_BYTES), FRAME_BYTES_MAX)
        body = self._read(prefix.body_bytes)
        header = bytes(body[: prefix.header_bytes])
        if prefix.error_code:
            raise error_from_code(prefix.error_code, decode_error(header))
        return decode_response(api, header, response_type), body[prefix.header_bytes :]

    def _read(self, count: int) -> memoryview:
        if len(self._buffer) < count:
            self._buffer = bytearray(count)
        view = memoryview(self._buffer)[:count]
        received = 0
        while received < count:
            n = self.sock.recv_into(view[received:])
            if n == 0:
                raise EOFError(f"{received} of {count} bytes")
            received += n
        return view

    def request(self, api: Api, message: Message, response_type: type[M], payload: bytes = b"") -> M:
        self.send(api, message, payload)
        return self.receive(api, response_type)[0]

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def envelope_batch(rows: int, value_bytes: int) -> bytes:
    """One encoded batch of an envelope topic."""
    now = time.time_ns() // 1_000_000  # what is old would be deleted while the benchmark runs
    columns = [
        pa.nulls(rows, pa.binary()),
        pa.array([os.urandom(value_bytes)] * rows, pa.binary()),
        pa.nulls(rows, ENVELOPE_SCHEMA.field("headers").type),
        pa.array([now * 1000] * rows, ENVELOPE_SCHEMA.field("timestamp").type),
    ]
    batch = pa.record_batch(columns, schema=ENVELOPE_SCHEMA)
    return bytes(encode_batch(batch, schema_id=1, min_timestamp_ms=now, max_timestamp_ms=now))


class BrokerProcess:
    """A broker of our own on a temporary directory."""

    def __init__(self, directory: str | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sparklog-bench-", dir=directory))
        started = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sparklog_broker", "--listen", "127.0.0.1:0", "--data-dir", str(self.directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.start_s = time.perf_counter() - started
        if not line:
            raise SystemExit("the broker did not start: run `python -m sparklog_broker` to see why")
        self.address = line.split()[-1]

    def rss_bytes(self) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
        return 0

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.directory)


def per_request_us(client: RawClient, count: int) -> float:
    """Round trip of a tiny request, one after the other."""
    started = time.perf_counter()
    for _ in range(count):
        client.request(Api.HANDSHAKE, HandshakeRequest(), HandshakeResponse)
    return (time.perf_counter() - started) / count * 1e6


def produce(client: RawClient, topic: str, batch: bytes, count: int, in_flight: int, partitions: int = 4) -> float:
    """Seconds for `count` requests of one batch each, with `in_flight` of them not yet answered."""
    waiting = 0
    started = time.perf_counter()
    for i in range(count):
        part = ProducePartition(topic, i % partitions, len(batch))
        client.send(Api.PRODUCE, ProduceRequest(-1, 30_000, [part]), batch)
        waiting += 1
        if waiting == in_flight:
            _check_produced(client)
            waiting -= 1
    for _ in range(waiting):
        _check_produced(client)
    return time.perf_counter() - started


def _check_produced(client: RawClient) -> None:
    result = client.receive(Api.PRODUCE, ProduceResponse)[0].results[0]
    if result.error_code:
        raise error_from_code(result.error_code, result.message)


def fetch(
    client: RawClient, topic: str, partition: int, rows_per_batch: int, bytes_wanted: int, max_bytes: int
) -> tuple[int, float]:
    """Bytes and seconds of reading a partition from its start, one request after the other."""
    offset = total = 0
    started = time.perf_counter()
    while total < bytes_wanted:
        wanted = FetchPartition(topic, partition, offset, max_bytes)
        client.send(Api.FETCH, FetchRequest(0, 1, max_bytes, 0, [wanted]))
        _, payload = client.receive(Api.FETCH, FetchResponse)
        if not len(payload):
            break
        total += len(payload)
        offset += rows_per_batch * round(len(payload) / (total_batch_bytes[topic]))
    return total, time.perf_counter() - started


total_batch_bytes: dict[str, int] = {}


def raw_sendfile(path: Path, total: int, chunk_bytes: int) -> float:
    """Seconds to send `total` bytes of a file from another process, in chunks that are asked for one by one."""
    code = (
        "import os,socket,sys\n"
        "s=socket.create_server(('127.0.0.1',0)); print(s.getsockname()[1],flush=True)\n"
        "c,_=s.accept(); f=os.open(sys.argv[1],os.O_RDONLY); chunk=int(sys.argv[2])\n"
        "at=end=0\n"
        "while c.recv(1):\n"
        "    end+=chunk\n"
        "    while at<end: at+=os.sendfile(c.fileno(),f,at,end-at)\n"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(chunk_bytes)], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    buffer = memoryview(bytearray(chunk_bytes))
    with socket.create_connection(("127.0.0.1", int(server.stdout.readline()))) as sock:
        started = time.perf_counter()
        for _ in range(total // chunk_bytes):
            sock.send(b"x")
            received = 0
            while received < chunk_bytes:
                received += sock.recv_into(buffer[received:])
        took = time.perf_counter() - started
    server.wait()
    server.stdout.close()
    return took


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", metavar="HOST:PORT", help="a running broker (default: starts one)")
    parser.add_argument("--directory", help="where its data directory is made; /dev/shm leaves the disk out of it")
    parser.add_argument("--produce-mib", type=int, default=1024, help="MiB to produce per size (default 1024)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of fetch and sendfile (default 5)")
    parser.add_argument("--fetch-mib", type=int, default=8, help="MiB per fetch request (default 8)")
    parser.add_argument("--fetch-total-mib", type=int, default=512, help="MiB to fetch per round (default 512)")
    parser.add_argument("--tiny-requests", type=int, default=5000, help="tiny requests to time (default 5000)")
    options = parser.parse_args(arguments)
    broker = None if options.bootstrap_server else BrokerProcess(options.directory)
    address = options.bootstrap_server or (broker.address if broker else "")
    host, _, port = address.rpartition(":")
    try:
        if broker is not None:
            print(f"start to `listening`        {broker.start_s * 1000:8.0f} ms")
            print(f"idle memory                 {broker.rss_bytes() / 1e6:8.1f} MB RSS")
        _measure(lambda: RawClient(host.strip("[]"), int(port)), broker, options)
        if broker is not None:
            print(f"memory afterwards           {broker.rss_bytes() / 1e6:8.1f} MB RSS")
    finally:
        if broker is not None:
            broker.stop()


def _measure(connect: Callable[[], RawClient], broker: BrokerProcess | None, options: argparse.Namespace) -> None:
    with connect() as client:
        topic = f"bench-{os.getpid()}"
        client.request(Api.CREATE_TOPIC, CreateTopicRequest(topic, 4), CreateTopicResponse)
        per_request_us(client, 200)
        print(f"tiny request                {per_request_us(client, options.tiny_requests):8.1f} us round trip")
        for name, rows, value_bytes in (("1 KiB", 8, 100), ("16 KiB", 125, 100), ("1 MiB", 8900, 100)):
            batch = envelope_batch(rows, value_bytes)
            count = min(max(options.produce_mib * MIB // len(batch), 10), 20_000)
            for in_flight in (1, 5):
                cpu = broker.cpu_s() if broker else 0.0
                took = produce(client, topic, batch, count, in_flight)
                used = f", broker {(broker.cpu_s() - cpu) / count * 1e6:.0f} us cpu/request" if broker else ""
                print(
                    f"produce {name:7} {in_flight} in flight {len(batch) * count / took / 1e6:8.0f} MB/s, "
                    f"{took / count * 1e6:7.0f} us/request{used}"
                )
        _measure_fetch(client, options)
        client.request(Api.DELETE_TOPIC, DeleteTopicRequest(topic), DeleteTopicResponse)


def _measure_fetch(client: RawClient, options: argparse.Namespace) -> None:
    topic = f"bench-fetch-{os.getpid()}"
    client.request(Api.CREATE_TOPIC, CreateTopicRequest(topic, 1), CreateTopicResponse)
    rows = 8900
    batch = envelope_batch(rows, 100)
    total_batch_bytes[topic] = len(batch)
    count = options.fetch_total_mib * MIB // len(batch)
    produce(client, topic, batch, count, 5, partitions=1)
    chunk = options.fetch_mib * MIB
    ratios, fetched, plain = [], [], []
    total = count * len(batch) // chunk * chunk
    with tempfile.NamedTemporaryFile(dir=options.directory) as f:
        for _ in range(total // chunk):
            f.write(os.urandom(chunk))
        f.flush()
        for _ in range(options.rounds):
            got, took = fetch(client, topic, 0, rows, total, chunk)
            raw = raw_sendfile(Path(f.name), total, chunk)
            fetched.append(got / took / 1e6)
            plain.append(total / raw / 1e6)
            ratios.append(fetched[-1] / plain[-1])
    print(f"fetch, {options.fetch_mib} MiB a request     {statistics.median(fetched):8.0f} MB/s")
    print(f"plain sendfile loop         {statistics.median(plain):8.0f} MB/s")
    print(
        f"fetch / sendfile            {statistics.median(ratios):8.2f} (median of {len(ratios)}; {min(ratios):.2f} to {max(ratios):.2f})"
    )
    client.request(Api.DELETE_TOPIC, DeleteTopicRequest(topic), DeleteTopicResponse)


if __name__ == "__main__":
    main()
