"""Reading older records from the broker's files: the moment of the request for them, and the fallback to the socket
after any fault, where no record is lost or comes twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sparklog.client.consumer import file_fetcher
from sparklog.client.consumer.consumer import Consumer
from sparklog.client.consumer.file_fetcher import PROBE_BYTES
from sparklog.client.net.cluster import cluster
from sparklog.client.reading import range_reader, segment_files
from sparklog.client.reading.range_reader import read_range
from sparklog.errors import CorruptBatchError, InvalidConfigError
from sparklog.format.batch import decode_header
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import LocateSegmentsResponse
from sparklog.types import TopicPartition
from tests.support.clients import TP0, drain, fill
from tests.support.waiting import until
from tests.unit.client.fake_broker import FakeBroker

TP1 = TopicPartition("events", 1)


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the fakes' files."""
    monkeypatch.setattr(FakeBroker, "data_dir", tmp_path)
    return tmp_path


def behind(fake: FakeBroker, **settings: Any) -> Consumer:
    """A consumer whose fetches bring one batch only: it is behind, and the files have the rest."""
    return Consumer(fake.address, max_partition_fetch_bytes=1024, **settings)


def asked(fake: FakeBroker, api: Api) -> list[Any]:
    return [message for a, message in list(fake.requests) if a is api]


def offsets(records: list[Any], partition: int = 0) -> list[int]:
    return [r.offset for r in records if r.partition == partition]


def located(monkeypatch: pytest.MonkeyPatch, then: Callable[[LocateSegmentsResponse], None]) -> None:
    """Call `then` with the located ranges before they are mapped."""

    def locate(*given: Any, **how: Any) -> LocateSegmentsResponse:
        found = segment_files.locate(*given, **how)
        then(found)
        return found

    monkeypatch.setattr(file_fetcher, "locate", locate)


def test_older_records_come_from_files_and_the_rest_through_the_socket(fake: FakeBroker) -> None:
    fill(fake, 50)
    with behind(fake) as consumer:
        consumer.assign([TP0])
        assert offsets(drain(consumer, 500)) == list(range(500))
        until(lambda: asked(fake, Api.FETCH)[-1].partitions[0].fetch_offset == 500)
        assert [m.partitions[0].fetch_offset for m in asked(fake, Api.FETCH)] == [0, 500]
        assert [m.start_offset for m in asked(fake, Api.LOCATE_SEGMENTS)] == [10]
        for _ in range(3):  # a consumer that keeps up
            fill(fake, 1)
            assert len(drain(consumer, 10)) == 10
        assert len(asked(fake, Api.LOCATE_SEGMENTS)) == 1


def test_a_little_is_never_located(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeBroker, "data_dir", Path("/nowhere"))
    fill(fake, 5)
    with Consumer(fake.address) as consumer:
        consumer.assign([TP0])
        assert len(drain(consumer, 50)) == 50
        fill(fake, 5)
        assert len(drain(consumer, 50)) == 50
    assert asked(fake, Api.FETCH)[0].partitions[0].max_bytes == PROBE_BYTES
    assert not asked(fake, Api.LOCATE_SEGMENTS)


def test_long_logs_are_located_in_stretches(fake: FakeBroker) -> None:
    fill(fake, 40)
    size = len(fake.logs[("events", 0)][0])
    with behind(fake) as consumer:
        assert consumer._fetcher.files is not None
        consumer._fetcher.files.stretch_bytes = 5 * size
        consumer.assign([TP0])
        assert offsets(drain(consumer, 400, max_records=7)) == list(range(400))
        assert len(asked(fake, Api.FETCH)) <= 2
    assert 6 <= len(asked(fake, Api.LOCATE_SEGMENTS)) <= 10


def test_switched_off_it_sends_no_request(fake: FakeBroker) -> None:
    fill(fake, 20)
    with behind(fake, local_read="off") as consumer:
        consumer.assign([TP0])
        assert len(drain(consumer, 200)) == 200
    assert not asked(fake, Api.LOCATE_SEGMENTS)
    with pytest.raises(InvalidConfigError, match=r"local\.read"):
        Consumer(fake.address, local_read="mmap")


@pytest.mark.parametrize("why", ["refused", "another directory", "not visible"])
def test_a_broker_with_unreadable_files_gets_one_request(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "refused":
        monkeypatch.setattr(FakeBroker, "data_dir", None)
    elif why == "another directory":
        fake.data_dir_id = "another"
    else:
        located(monkeypatch, lambda _: None)
        monkeypatch.setattr(segment_files, "_check_same_directory", refuse)
    fill(fake, 20)
    with behind(fake) as consumer:
        consumer.assign([TP0])
        assert offsets(drain(consumer, 200)) == list(range(200))
        consumer.seek(TP0, 100)
        assert offsets(drain(consumer, 100)) == list(range(100, 200))
    assert len(asked(fake, Api.LOCATE_SEGMENTS)) == 1


def refuse(_: Any) -> None:
    raise PermissionError("meta.json")


def remove(found: LocateSegmentsResponse) -> None:
    for r in found.ranges:
        Path(r.path).unlink()


def shorten(found: LocateSegmentsResponse) -> None:
    for r in found.ranges:
        Path(r.path).write_bytes(Path(r.path).read_bytes()[: r.end_position - 1])


def replace(found: LocateSegmentsResponse) -> None:
    """As compaction does: another file of the same name, where a later batch is at that position."""
    for r in found.ranges:
        data = Path(r.path).read_bytes()
        size = (r.end_position - r.start_position) // 19
        Path(r.path).unlink()
        Path(r.path).write_bytes(data[: r.start_position] + data[r.start_position + size :] + bytes(size))


def overwrite(found: LocateSegmentsResponse) -> None:
    for r in found.ranges:
        Path(r.path).write_bytes(bytes(r.end_position))


@pytest.mark.parametrize("happens", [remove, shorten, replace, overwrite])
def test_files_that_change_before_they_are_mapped(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch, happens: Callable[[LocateSegmentsResponse], None]
) -> None:
    fill(fake, 20)
    assert len({len(b) for b in fake.logs[("events", 0)]}) <= 3
    located(monkeypatch, happens)
    with behind(fake) as consumer:
        consumer.assign([TP0])
        assert offsets(drain(consumer, 200)) == list(range(200))
    assert len(asked(fake, Api.LOCATE_SEGMENTS)) > 1, "the next file may be in order"


def test_files_that_may_not_be_opened_are_tried_once(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_files, "_map", refuse)
    fill(fake, 20)
    with behind(fake) as consumer:
        consumer.assign([TP0])
        assert offsets(drain(consumer, 200)) == list(range(200))
    assert len(asked(fake, Api.LOCATE_SEGMENTS)) == 1


def test_a_file_that_goes_while_it_is_mapped_is_read_to_its_end(fake: FakeBroker, files: Path) -> None:
    fill(fake, 50)
    size = len(fake.logs[("events", 0)][0])
    with behind(fake, prefetch_bytes=size) as consumer:
        consumer.assign([TP0])
        found = drain(consumer, 30)
        for path in files.glob("*.arrow"):
            path.unlink()
        found += drain(consumer, 500 - len(found))
        assert offsets(found) == list(range(500))
        assert len(asked(fake, Api.LOCATE_SEGMENTS)) == 1


def test_damage_is_reported_as_by_the_socket_after_the_intact_records(fake: FakeBroker) -> None:
    fill(fake, 10)
    fake.logs[("events", 0)][6][-1] ^= 1
    with behind(fake) as consumer:
        consumer.assign([TP0])
        assert offsets(drain(consumer, 60)) == list(range(60))
        for _ in range(2):
            with pytest.raises(CorruptBatchError, match="events-0 at offset 60"):
                consumer.poll(5000)
        consumer.seek(TP0, 70)
        assert offsets(drain(consumer, 30)) == list(range(70, 100))


def test_records_only_in_the_object_store_are_read_by_the_broker(fake: FakeBroker) -> None:
    state = fake.topics["events"]
    moved = [msgspec.structs.replace(p, local_log_start_offset=100) for p in state.partitions]
    fake.topics["events"] = msgspec.structs.replace(state, partitions=moved)
    fill(fake, 20)
    with behind(fake) as consumer:
        consumer.assign([TP0])
        assert offsets(drain(consumer, 200)) == list(range(200))
    assert [m.start_offset for m in asked(fake, Api.LOCATE_SEGMENTS)] == [100]


def test_partitions_take_turns(fake4: FakeBroker) -> None:
    fill(fake4, 40)
    fill(fake4, 40, partition=1)
    size = len(fake4.logs[("events", 0)][0])
    with behind(fake4, prefetch_bytes=2 * size) as consumer:
        consumer.assign([TP0, TP1])
        records = drain(consumer, 800, max_records=100)
    assert offsets(records, 0) == offsets(records, 1) == list(range(400))
    changes = sum(a.partition != b.partition for a, b in itertools.pairwise(records))
    assert changes > 10


def test_a_return_from_files_does_not_wait_for_another_poll(fake4: FakeBroker) -> None:
    fill(fake4, 1)
    with behind(fake4, fetch_max_wait_ms=60_000) as consumer:
        consumer.assign([TP0, TP1])
        assert len(drain(consumer, 10)) == 10
        fill(fake4, 30, partition=1)
        assert offsets(drain(consumer, 300), 1) == list(range(300))

        def waits_for_both() -> bool:
            last = asked(fake4, Api.FETCH)[-1].partitions
            return {(p.partition, p.fetch_offset) for p in last} == {(0, 10), (1, 300)}

        until(waits_for_both)
        fill(fake4, 1, partition=1)
        assert offsets(drain(consumer, 10), 1) == list(range(300, 310))
        fill(fake4, 1)
        assert offsets(drain(consumer, 10), 0) == list(range(10, 20))


def test_seek_pause_and_assign_drop_read_records(fake4: FakeBroker) -> None:
    fill(fake4, 40)
    fill(fake4, 40, partition=1)
    with behind(fake4) as consumer:
        consumer.assign([TP0, TP1])
        drain(consumer, 50)
        consumer.seek(TP0, 7)
        consumer.pause(TP1)
        assert offsets(drain(consumer, 393)) == list(range(7, 400))
        stands = consumer.position(TP1)
        consumer.resume(TP1)
        assert offsets(drain(consumer, 400 - stands), 1) == list(range(stands, 400))
        consumer.seek(TP0, 0)
        consumer.assign([TP1])
        assert consumer.poll(50) == []


def test_an_absent_broker_does_not_disturb_mapped_files(fake: FakeBroker) -> None:
    fill(fake, 50)
    size = len(fake.logs[("events", 0)][0])
    with behind(fake, prefetch_bytes=size) as consumer:
        consumer.assign([TP0])
        found = drain(consumer, 30)
        until(lambda: bool(asked(fake, Api.LOCATE_SEGMENTS)))
        fake.close()
        found += drain(consumer, 500 - len(found))
        assert offsets(found) == list(range(500))
        assert consumer.poll(20) == []


def test_a_failure_of_the_thread_is_raised(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("as told")

    located(monkeypatch, fail)
    fill(fake, 20)
    with behind(fake) as consumer:
        consumer.assign([TP0])
        with pytest.raises(Exception, match="as told"):
            drain(consumer, 200)


def test_the_answer_is_not_requested_again_after_a_while(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a broker without files is the cluster's, so that all consumers of a process share it."""
    monkeypatch.setattr(FakeBroker, "data_dir", None)
    fill(fake, 20)
    for _ in range(3):
        with behind(fake) as consumer:
            consumer.assign([TP0])
            assert len(drain(consumer, 200)) == 200
    assert len(asked(fake, Api.LOCATE_SEGMENTS)) == 1
    leader = cluster(fake.address).leader(TP0)
    assert not cluster(fake.address).local_reads.is_worth_trying(leader)


def test_a_range_is_requested_again_at_the_end_of_an_answer(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(fake, 5)

    def first_batch(*given: Any, **how: Any) -> LocateSegmentsResponse:
        found = segment_files.locate(*given, **how)
        del found.ranges[1:]
        part = found.ranges[0]
        size = decode_header(Path(part.path).read_bytes(), part.start_position).size_bytes
        found.ranges[0] = msgspec.structs.replace(part, end_position=part.start_position + size)
        return found

    monkeypatch.setattr(range_reader, "locate", first_batch)
    batches = list(read_range(cluster(fake.address), TP0, 0, 50))
    assert [b.base_offset for b in batches] == [0, 10, 20, 30, 40]
    assert [m.start_offset for m in asked(fake, Api.LOCATE_SEGMENTS)] == [0, 10, 20, 30, 40]
    assert not asked(fake, Api.FETCH)
