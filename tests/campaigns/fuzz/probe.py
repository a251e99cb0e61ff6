"""Latency of a tiny request while peers are hostile.

One honest connection asks for a topic's offsets again and again and times every answer; beside it, for a few seconds
each, peers of one kind. A benchmark, not a test: it prints its measurements. Its own processor time is on the same
machine, so the first line, without hostile peers, is the reference for the others.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from sparklog.errors import SparklogError
from sparklog.protocol.apis import Api
from sparklog.protocol.codec import encode
from sparklog.protocol.frames import encode_request
from sparklog.protocol.group_messages import DescribeGroupsRequest, DescribeGroupsResponse
from sparklog.protocol.messages import HandshakeRequest, ProducePartition, ProduceRequest
from sparklog.protocol.topic_messages import MetadataRequest
from tests.campaigns.fuzz.cases import ENVELOPE_ID, Form, honest_batch
from tests.campaigns.fuzz.message import Message
from tests.campaigns.fuzz.mutations import BOMB_BYTES, frame_of_zeros
from tests.campaigns.fuzz.whole_batches import encoded
from tests.golden.make_golden import envelope_rows
from tests.support.raw_client import RawClient
from tests.system.broker_process import BrokerProcess, create_topic, end_offset

WIDE_PARTITIONS = 5000
SETTINGS = "topic.retention.ms = -1\n"
REPEATED = 1000


class Measured(NamedTuple):
    """Latencies in ms, and the broker's largest memory meanwhile. `failed`: requests that were refused or cut."""

    name: str
    requests: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    memory_bytes: int
    failed: int


Peer = Callable[[str, int, float], None]
"""Host, port, for how long (s). Runs in a process of its own."""


def _until(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def _connected(host: str, port: int) -> socket.socket:
    sock = socket.create_connection((host, port), 5.0)
    sock.settimeout(30.0)
    return sock


def nobody(host: str, port: int, seconds: float) -> None:
    """The machine alone."""
    time.sleep(seconds)


def metadata_amplified(host: str, port: int, seconds: float) -> None:
    """METADATA that names one large topic again and again, and all of them; the answers are read."""
    for _ in _until(seconds):
        with contextlib.suppress(SparklogError, OSError, EOFError), RawClient(host, port) as client:
            for topics in [["wide"] * REPEATED, None, ["wide"]]:
                client.send(Api.METADATA, MetadataRequest(topics))
                head = client._read(16)
                length = struct.unpack_from("<I", head)[0]
                left = length - 12
                while left:
                    left -= len(client._read(min(left, 1 << 20)))


def groups_amplified(host: str, port: int, seconds: float) -> None:
    """DESCRIBE_GROUPS that names one group 10,000 times."""
    for _ in _until(seconds):
        with contextlib.suppress(SparklogError, OSError, EOFError), RawClient(host, port) as client:
            client.request(Api.DESCRIBE_GROUPS, DescribeGroupsRequest(["group"] * 10_000), DescribeGroupsResponse)


def answers_unread(host: str, port: int, seconds: float) -> None:
    """Hundreds of connections that ask for all metadata and read nothing."""
    request = encode_request(Api.METADATA, 0, 1, encode(MetadataRequest(["wide"])))
    with contextlib.ExitStack() as stack:
        socks: list[socket.socket] = []
        for _ in _until(seconds):
            with contextlib.suppress(OSError):
                if len(socks) < 300:
                    socks.append(stack.enter_context(_connected(host, port)))
                for sock in socks[-20:]:
                    sock.setblocking(False)
                    sock.send(request)
            time.sleep(0.005)


def trickle(host: str, port: int, seconds: float) -> None:
    """Frames that claim to be large and come byte by byte."""
    with contextlib.ExitStack() as stack:
        head = struct.pack("<IHHII", 50 << 20, Api.PRODUCE, 0, 1, 100)
        socks = []
        for _ in range(200):
            with contextlib.suppress(OSError):
                sock = stack.enter_context(_connected(host, port))
                sock.sendall(head)
                socks.append(sock)
        for _ in _until(seconds):
            for sock in socks:
                with contextlib.suppress(OSError):
                    sock.send(b"x")
            time.sleep(0.05)


def storm(host: str, port: int, seconds: float) -> None:
    """Connections made, greeted and dropped as fast as it goes."""
    hello = encode_request(Api.HANDSHAKE, 0, 1, encode(HandshakeRequest("storm", "0")))
    for _ in _until(seconds):
        with contextlib.suppress(OSError), _connected(host, port) as sock:
            sock.sendall(hello)


def descriptors(host: str, port: int, seconds: float) -> None:
    """As many open connections as there may be."""
    with contextlib.ExitStack() as stack:
        for _ in _until(seconds):
            try:
                stack.enter_context(_connected(host, port))
            except OSError:
                time.sleep(0.05)


def _produced(client: RawClient, data: bytes, topic: str, transactional_id: str | None = None) -> None:
    request = ProduceRequest(-1, 1000, [ProducePartition(topic, 0, len(data))], transactional_id)
    client.send(Api.PRODUCE, request, data)
    head = client._read(16)
    client._read(struct.unpack_from("<I", head)[0] - 12)


def bombs(host: str, port: int, seconds: float) -> None:
    """Batches of 33 KB that inflate to a gigabyte."""
    message = Message(honest_batch(Form(ENVELOPE_ID, "arrow", 5, "zstd")))
    message.replace_buffer(5, struct.pack("<q", BOMB_BYTES) + frame_of_zeros("zstd"))
    data = message.sealed()
    for _ in _until(seconds):
        with contextlib.suppress(OSError, EOFError), RawClient(host, port) as client:
            _produced(client, data, "compacted")


def refused_transactions(host: str, port: int, seconds: float) -> None:
    """Transactional batches of producers that nobody knows: each is refused."""
    number = 1 << 40
    for _ in _until(seconds):
        with contextlib.suppress(OSError, EOFError), RawClient(host, port) as client:
            for _ in range(50):
                number += 1
                data = encoded(
                    envelope_rows(0, 1),
                    ENVELOPE_ID,
                    "none",
                    attributes=2,
                    producer_id=number,
                    producer_epoch=0,
                    base_sequence=0,
                )
                _produced(client, data, "envelope", "nobody's")


PEERS: tuple[Peer, ...] = (
    nobody,
    metadata_amplified,
    groups_amplified,
    answers_unread,
    trickle,
    storm,
    descriptors,
    bombs,
    refused_transactions,
)


def measure(broker: BrokerProcess, peer: Peer, seconds: float, *, peers: int = 2) -> Measured:
    """Lets `peers` processes of a kind at the broker and times the honest client's requests."""
    latencies: list[float] = []
    failed = 0
    memory = broker.rss_bytes()
    client: RawClient | None = broker.connect()
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=peer, args=(broker.host, broker.port, seconds), daemon=True) for _ in range(peers)
    ]
    for process in processes:
        process.start()
    try:
        for _ in _until(seconds):
            started = time.perf_counter()
            try:
                client = client or broker.connect()
                end_offset(client, "honest")
            except (OSError, EOFError, SparklogError):
                failed += 1
                client = None
            latencies.append((time.perf_counter() - started) * 1000)
            memory = max(memory, broker.rss_bytes())
            time.sleep(0.002)
    finally:
        if client is not None:
            client.close()
        for process in processes:
            process.join(seconds + 35.0)
            if process.is_alive():
                process.kill()
                process.join()
    latencies.sort()
    p99 = latencies[min(len(latencies) - 1, int(len(latencies) * 0.99))]
    return Measured(peer.__name__, len(latencies), statistics.median(latencies), p99, latencies[-1], memory, failed)


def started(work_dir: Path) -> BrokerProcess:
    """Start a broker on the directory of `prepared`."""
    return BrokerProcess(work_dir / "data", settings=SETTINGS, work_dir=work_dir)


def prepared(work_dir: Path, wide_partitions: int = WIDE_PARTITIONS) -> BrokerProcess:
    """A broker with one topic of many partitions, and those that peers write to."""
    broker = started(work_dir)
    with broker.connect() as client:
        client.sock.settimeout(120.0)
        create_topic(client, "honest")
        create_topic(client, "envelope")
        create_topic(client, "compacted", configs={"cleanup.policy": "compact"})
        create_topic(client, "wide", wide_partitions)
    return broker


def run(seconds: float, names: list[str]) -> int:
    """Prints a line per kind of peer, each measured at a broker that was started for it."""
    known = [p.__name__ for p in PEERS]
    if unknown := sorted(set(names) - set(known)):
        raise SystemExit(f"no such peers: {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = [p for p in PEERS if not names or p.__name__ in names]
    with tempfile.TemporaryDirectory(prefix="sparklog-probe-") as directory:
        work_dir = Path(directory)
        broker = prepared(work_dir)
        print(
            f"{'peers':<22} {'requests':>9} {'p50 ms':>9} {'p99 ms':>9} {'worst ms':>9} {'failed':>7} {'memory MiB':>11}"
        )
        died = 0
        for peer in chosen:
            m = measure(broker, peer, seconds)
            row = f"{m.name:<22} {m.requests:>9} {m.p50_ms:>9.2f} {m.p99_ms:>9.2f} {m.worst_ms:>9.1f} {m.failed:>7}"
            print(f"{row} {m.memory_bytes >> 20:>11}", flush=True)
            code = broker.process.poll()
            if code is not None:
                print(f"the broker ended with {code}:\n{broker.stderr[-2000:]}")
                died += 1
            broker.stop(signal.SIGKILL)
            broker = started(work_dir)
        broker.stop(signal.SIGKILL)
    return 1 if died else 0
