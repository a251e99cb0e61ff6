"""A real broker with little memory that gets hostile requests through raw sockets; beside them an honest client checks
that its stored records exist, byte for byte."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sparklog.errors import ERRORS, SparklogError, TopicAlreadyExistsError, UnknownServerError
from sparklog.format.batch import STAMP_CHARS, decode_header
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.codec import decode_error, decode_response
from sparklog.protocol.frames import PREFIX_BYTES, RESPONSE_PREFIX
from tests.campaigns.fuzz.campaign import FINDINGS_MAX, Finding, Outcome
from tests.campaigns.fuzz.cases import ENVELOPE_ID, TYPED_ID
from tests.campaigns.fuzz.planted import honest
from tests.campaigns.fuzz.requests import Request, make_request
from tests.golden.make_golden import TYPED_SCHEMA
from tests.support.raw_client import RawClient
from tests.system.broker_process import BrokerProcess, create_topic, fetch, produce

ADDRESS_SPACE_BYTES = 6 << 30
GROWTH_BYTES_MAX = 600 << 20
"""Of the broker's memory over a whole campaign; its budgets are below."""
ANSWER_S = 120.0
"""A request may ask for 10,000 partitions, and those behind it wait for the same disk."""
GIVEN_UP_S = 0.03
"""A fetch may wait for a minute, half a frame for the rest: then the connection is given up, as a hostile client
would."""
CHECK_EVERY = 25
SETTINGS = """
topic.retention.ms = -1
log.cleaner.backoff.ms = 200
queued.max.request.bytes = 67108864
"""
TOPICS = {"typed": TYPED_ID, "envelope": ENVELOPE_ID, "compacted": ENVELOPE_ID}
NAMES = [*TOPICS, "group", "txn", "nobody", "range", "member", "__consumer_offsets", "__transaction_state"]


class BrokerTarget:
    """One broker with its honest client. Started anew when it has died."""

    def __init__(self, work_dir: Path) -> None:
        self._work_dir = work_dir
        self._starts = 0
        self._socket: socket.socket | None = None
        self._read_of_stderr = 0
        self._start()

    def _start(self) -> None:
        self._starts += 1
        self._stored: list[bytes] = []
        self._read_of_stderr = 0
        directory = self._work_dir / f"broker-{self._starts}"
        directory.mkdir()
        self.broker = BrokerProcess(directory / "data", settings=SETTINGS, work_dir=directory)
        resource.prlimit(self.broker.process.pid, resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
        with self.broker.connect() as client:
            create_topic(client, "honest", 1)
            self._make_topics(client)
        self._memory_bytes = self.broker.rss_bytes()

    def _make_topics(self, client: RawClient) -> None:
        """Those that are fuzzed, as far as a request has deleted them."""
        more: dict[str, dict[str, Any]] = {
            "typed": {"arrow_schema": bytes(TYPED_SCHEMA.serialize()), "timestamp_column": "at"},
            "compacted": {"configs": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "segment.ms": 1000}},
        }
        for name in TOPICS:
            with contextlib.suppress(TopicAlreadyExistsError):
                create_topic(client, name, 2, **more.get(name, {}))

    def stop(self) -> int:
        """Ends the broker in order; its exit code."""
        self._drop()
        return self.broker.stop()

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, request: Request) -> str:
        """Send one request and check the answer; returns the fault."""
        if self._socket is None:
            try:
                self._socket = self.broker.socket()
            except OSError as e:
                return f"nobody listens: {e}"
        self._socket.settimeout(ANSWER_S if request.is_answered else GIVEN_UP_S)
        try:
            self._socket.sendall(request.data)
            prefix = self._receive(PREFIX_BYTES)
            length, api, code, correlation_id, header_bytes = RESPONSE_PREFIX.unpack(prefix)
            self._socket.settimeout(ANSWER_S)
            body = self._receive(length - PREFIX_BYTES + 4)
        except TimeoutError:
            self._drop()
            return f"no answer within {ANSWER_S} s" if request.is_answered else ""
        except (EOFError, ConnectionError):
            self._drop()
            return ""
        if correlation_id != request.seed & 0xFFFFFFFF or api != request.api:
            return f"the answer is for API {api}, correlation id {correlation_id}"
        if code:
            text = decode_error(body[:header_bytes])
            if code not in ERRORS or ERRORS[code] is UnknownServerError:
                return f"an untyped error: {code} {text}"
            return ""
        try:
            decode_response(Api(api), body[:header_bytes], APIS[Api(api)].response)
        except SparklogError as e:
            return f"the answer cannot be read: {e}"
        return ""

    def _receive(self, count: int) -> bytes:
        assert self._socket is not None
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(min(1 << 20, count - len(data)))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def health(self) -> str:
        """Return the broker's fault: its life, its log, its memory, the honest client's records."""
        code = self.broker.process.poll()
        if code is not None:
            return f"the broker ended with {code}:\n{self._new_stderr()[-4000:]}"
        text = self._new_stderr()
        if "Traceback" in text:
            return f"a traceback in the broker's log:\n{text[-4000:]}"
        grown = self.broker.rss_bytes() - self._memory_bytes
        if grown > GROWTH_BYTES_MAX:
            return f"the broker's memory has grown by {grown >> 20} MiB"
        return self._honest_client()

    def _honest_client(self) -> str:
        try:
            with self.broker.connect() as client:
                data = honest(ENVELOPE_ID, len(self._stored) % 3, 0)[0]
                result = produce(client, [("honest", 0, data)])[0]
                if result.error_code:
                    return f"an honest batch is refused: {result.error_code} {result.message}"
                self._stored.append(data)
                self._make_topics(client)
                found = bytearray()
                while len(found) < len(self._stored) * len(data) and (
                    piece := fetch(client, "honest", _end_of(found), max_bytes=1 << 22)[1]
                ):
                    found += piece
                return (
                    ""
                    if _unstamped(bytes(found)) == list(map(_without_stamp, self._stored))
                    else "an honest batch has changed"
                )
        except (OSError, EOFError, SparklogError) as e:
            time.sleep(0.2)
            code = self.broker.process.poll()
            return f"an honest client fails: {type(e).__name__} {e}; the broker {'runs' if code is None else f'ended with {code}'}:\n{self._new_stderr()[-4000:]}"

    def _new_stderr(self) -> str:
        text = self.broker.stderr[self._read_of_stderr :]
        self._read_of_stderr += len(text)
        return text

    def restart(self) -> None:
        """Another broker on an empty directory."""
        self._drop()
        if self.broker.process.poll() is None:
            self.broker.process.kill()
        self.broker.wait()
        self._start()


def _end_of(data: bytes | bytearray) -> int:
    offset = at = 0
    while at < len(data):
        header = decode_header(data, at)
        at, offset = at + header.size_bytes, header.next_offset
    return offset


def _without_stamp(data: bytes) -> bytes:
    at = decode_header(data).stamp_position
    return data[:at] + data[at + STAMP_CHARS :]


def _unstamped(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size = decode_header(data, at).size_bytes
        found.append(_without_stamp(data[at : at + size]))
        at += size
    return found


def run_requests(seeds: Iterable[int], work_dir: Path, *, seconds: float | None = None) -> Outcome:
    """Sends the requests of `seeds`, checking the broker every CHECK_EVERY ones."""
    target = BrokerTarget(work_dir)
    started = time.monotonic()
    findings: list[Finding] = []
    recent: list[Request] = []
    cases = 0
    try:
        for seed in seeds:
            cases += 1
            request = make_request(seed, NAMES, TOPICS)
            recent.append(request)
            problem = target.send(request)
            if problem:
                findings.append(_finding(request, problem))
            if problem or cases % CHECK_EVERY == 0:
                if problem := target.health():
                    findings.append(_blamed(target, recent, problem))
                recent.clear()
            late = seconds is not None and time.monotonic() - started > seconds
            if late or len(findings) >= FINDINGS_MAX:
                break
        if problem := target.health():
            findings.append(_blamed(target, recent, problem))
        code = target.stop()
        if code:
            findings.append(
                Finding("broker", "the end", f"a clean stop ends with {code}:\n{target.broker.stderr[-3000:]}", "-")
            )
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(target.broker.process.pid, 9)
        target.broker.wait()
    return Outcome(cases, time.monotonic() - started, 0, cases, findings)


def _finding(request: Request, problem: str) -> Finding:
    return Finding("broker", request.name, problem, f"python -m tests.campaigns.fuzz run broker --seed {request.seed}")


def _blamed(target: BrokerTarget, recent: list[Request], problem: str) -> Finding:
    """Which of the last requests it was: each alone against another broker."""
    for request in reversed(recent):
        target.restart()
        alone = target.send(request) or target.health()
        if alone:
            target.restart()
            return _finding(request, alone)
    target.restart()
    seeds = f"seeds {recent[0].seed} to {recent[-1].seed} together" if recent else "unknown"
    command = (
        f"python -m tests.campaigns.fuzz run broker --seed {recent[0].seed} --count {len(recent)}" if recent else "-"
    )
    return Finding("broker", seeds, problem, command)
