"""A broker that lies: every answer ends in a typed error, soon, and nothing is mapped that is no segment."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sparklog import Admin, Consumer, Producer, TopicPartition
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import forget
from sparklog.client.net.connection import Connection
from sparklog.client.reading.segment_files import _check_names, mapped_batches
from sparklog.errors import (
    BrokerNotAvailableError,
    FrameTooLargeError,
    InvalidRequestError,
    LocalReadUnavailableError,
    SparklogError,
)
from sparklog.protocol import frames
from sparklog.protocol import messages as m
from sparklog.protocol import topic_messages as topics
from sparklog.protocol.apis import Api
from tests.support.expired_batches import expire_after_a_failure
from tests.unit.client.lying_broker import LyingBroker, other_partition

TP = TopicPartition("events", 0)


@pytest.fixture
def lying() -> Any:
    broker = LyingBroker()
    yield broker
    broker.close()
    forget(broker.address)


def test_offsets_of_unrequested_partitions(lying: LyingBroker) -> None:
    lying.lies[Api.LIST_OFFSETS] = other_partition
    with Admin(lying.address) as admin, pytest.raises(InvalidRequestError, match="does not cover"):
        admin.list_offsets({TP: "latest"})


@pytest.mark.parametrize("offset", [-1, -(2**63)])
def test_offsets_that_no_log_has(lying: LyingBroker, offset: int) -> None:
    def lie(answer: Any) -> Any:
        for result in answer.results:
            result.offset = offset
        return answer

    lying.lies[Api.LIST_OFFSETS] = lie
    with Admin(lying.address) as admin, pytest.raises(InvalidRequestError, match=f"offset {offset} for events-0"):
        admin.list_offsets({TP: "latest"})


def test_an_answer_without_results(lying: LyingBroker) -> None:
    lying.lies[Api.LIST_OFFSETS] = lambda answer: type(answer)([])
    with Consumer(lying.address) as consumer:
        consumer.assign([TP])
        with pytest.raises(InvalidRequestError, match="does not cover"):
            consumer.position(TP)


def test_a_produce_that_is_answered_for_another_partition_is_not_acknowledged(
    lying: LyingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying.lies[Api.PRODUCE] = other_partition
    expire_after_a_failure(monkeypatch)
    producer = Producer(lying.address)
    with pytest.raises(SparklogError, match="has not answered for the partitions"):
        producer.send("events", b"x").result(30)
    producer.close()


def _without_schemas(answer: topics.MetadataResponse) -> topics.MetadataResponse:
    return msgspec.structs.replace(answer, topics=[msgspec.structs.replace(t, schemas=[]) for t in answer.topics])


def _with_nonsense(answer: topics.MetadataResponse) -> topics.MetadataResponse:
    nonsense = [topics.SchemaVersion(1, b"no schema")]
    return msgspec.structs.replace(answer, topics=[msgspec.structs.replace(t, schemas=nonsense) for t in answer.topics])


def _with_a_gap(answer: topics.MetadataResponse) -> topics.MetadataResponse:
    gap = [topics.PartitionState(5, 0, 0, [0], [0])]
    return msgspec.structs.replace(answer, topics=[msgspec.structs.replace(t, partitions=gap) for t in answer.topics])


@pytest.mark.parametrize("lie", [_without_schemas, _with_nonsense, _with_a_gap])
def test_metadata_that_are_none(lying: LyingBroker, lie: Callable[[Any], Any]) -> None:
    lying.lies[Api.METADATA] = lie
    with Admin(lying.address) as admin, pytest.raises(InvalidRequestError, match=r"broker's (answer|response)"):
        admin.describe_topic("events")
    with Producer(lying.address) as producer, pytest.raises(InvalidRequestError, match=r"broker's (answer|response)"):
        producer.send("events", b"x")


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (frames.RESPONSE_PREFIX.pack(1 << 30, Api.HANDSHAKE, 0, 1, 8), FrameTooLargeError),
        (frames.RESPONSE_PREFIX.pack(12 + 8, Api.HANDSHAKE, 0, 2, 8) + bytes(8), InvalidRequestError),
        (frames.RESPONSE_PREFIX.pack(12 + 8, Api.FETCH, 0, 1, 8) + bytes(8), InvalidRequestError),
        (frames.RESPONSE_PREFIX.pack(12, Api.HANDSHAKE, 32_000, 1, 0), SparklogError),
        (b"", BrokerNotAvailableError),
    ],
    ids=["a gigabyte for a handshake", "another correlation id", "another api", "an unknown error code", "nothing"],
)
def test_first_answers(reply: bytes, error: type[SparklogError]) -> None:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(reply)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(error):
            Connection(Endpoint(*listener.getsockname()), timeout_ms=60_000)
        thread.join(30)


# -- files


def located(data_dir: Path, path: Path | str, start: int = 0, end: int = 1) -> m.LocateSegmentsResponse:
    return m.LocateSegmentsResponse(str(data_dir), "id", 1, 0, [m.SegmentRange(str(path), 1, 0, start, end, 0)])


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "events-1/0.arrow", "events-0/../x/0.arrow", "events-0/0.log", "0.arrow", "/dev/zero", ""]
)
def test_paths_that_are_no_segments_of_the_partition(tmp_path: Path, path: str) -> None:
    with pytest.raises(LocalReadUnavailableError, match="is no segment file of events-0"):
        _check_names(located(tmp_path, os.path.join(tmp_path, path)), TP)  # noqa: PTH118  as it is named


def test_segments_and_their_cached_copies_pass(tmp_path: Path) -> None:
    _check_names(located(tmp_path, tmp_path / "events-0" / "0.arrow"), TP)
    _check_names(located(tmp_path, tmp_path.parent / "remote-log-cache" / "0.arrow"), TP)


def _mapped(path: Path, start: int = 0, end: int = 1) -> None:
    list(mapped_batches(located(path.parent, path, start, end).ranges))


def test_special_files_do_not_block_the_client(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0.arrow")
    (tmp_path / "1.arrow").mkdir()
    for name in ("0.arrow", "1.arrow"):
        with pytest.raises(LocalReadUnavailableError, match="no regular file"):
            _mapped(tmp_path / name)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "0.arrow").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match=r"0\.arrow"):
        _mapped(tmp_path / "0.arrow")


def test_a_file_that_everybody_may_cut_is_not_mapped(tmp_path: Path) -> None:
    path = tmp_path / "0.arrow"
    path.write_bytes(bytes(100))
    path.chmod(0o666)
    with pytest.raises(LocalReadUnavailableError, match="users other than its directory's owner"):
        _mapped(path)


@pytest.mark.parametrize(("start", "end"), [(0, 101), (-1, 50), (60, 50), (0, 1 << 62)])
def test_ranges_outside_of_the_file(tmp_path: Path, start: int, end: int) -> None:
    path = tmp_path / "0.arrow"
    path.write_bytes(bytes(100))
    with pytest.raises(LocalReadUnavailableError, match="were announced"):
        _mapped(path, start, end)


def test_a_file_that_was_cut_before_it_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "0.arrow"
    path.write_bytes(bytes(100))
    os.truncate(path, 10)
    with pytest.raises(LocalReadUnavailableError, match="were announced"):
        _mapped(path, 0, 100)
