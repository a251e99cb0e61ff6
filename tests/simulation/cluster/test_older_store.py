"""An older copy replaces ZooKeeper's data, or the data lose a topic: brokers lose no record, and the metadata are
restored."""

from __future__ import annotations

from pathlib import Path

import pytest
from sparklog_broker.cluster.restoration import newest_copy, write_back

from sparklog.errors import AdoptionRefusedError
from sparklog.format.checkpoint import CLUSTER_IMAGE_FILE
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.coordination import NO_SESSION, Delete
from sparklog.metadata.image_copy import ImageCopy
from sparklog.metadata.store import TopicSpec
from sparklog.replication.controller.model import AlterConfig, DeleteTopic, Elect, ElectionKind, Reassign
from sparklog.testing._sim_zookeeper import SimClient, StoreCopy
from sparklog.types import TopicPartition
from tests.simulation.cluster.play import PATIENCE_S, SESSION_S, TP, Play

DATA = Path("/data")
NEW = "made-after-the-copy"
OLD = "deleted-after-the-copy"
BROKERS = (1, 2, 3)


def make(play: Play, topic: str) -> None:
    spec = TopicSpec(topic, 1, configs={"min.insync.replicas": 2}, replication_factor=3)
    play.world.at_controller(lambda broker: broker.topics.create(spec), limit_s=PATIENCE_S)
    play.until(lambda: all(end_of(play, i, topic) == 0 for i in BROKERS))


def end_of(play: Play, broker_id: int, topic: str) -> int:
    """Return the log end offset; -1 if the broker has no log."""
    broker = play[broker_id].broker
    partition = None if broker is None else broker.partitions.find(TopicPartition(topic, 0))
    log = None if partition is None else partition.open_log
    return -1 if log is None else int(log.log_end_offset)


def put_back(play: Play, copy: StoreCopy, *, new_zxids: bool) -> None:
    zookeeper = play.world.zookeeper
    zxid = zookeeper.znodes.zxid + 1_000_000 if new_zxids else 0
    if zookeeper.is_up:
        zookeeper.stop()
    zookeeper.put_back(copy, zxid=zxid)
    zookeeper.start()


def changed_since(play: Play) -> tuple[StoreCopy, int]:
    """Return a copy of the store, and the partition's log end after later changes: a topic created, another deleted, a
    replica moved, another leader, a setting changed, records acknowledged.
    """
    make(play, OLD)
    copy = play.world.zookeeper.copy()
    make(play, NEW)
    play.ask_controller(lambda token: DeleteTopic(token, OLD))
    play.ask_controller(lambda token: AlterConfig(token, TP.topic, {"retention.ms": 86_400_000}))
    play.ask_controller(lambda token: Reassign(token, {TP: (2, 3, 1)}))
    play.ask_controller(lambda token: Elect(token, ElectionKind.PREFERRED, (TP,)))
    play.until(lambda: play.leads(2))
    for _ in range(3):
        end = play.acknowledged() + 3
    play.until(lambda: all(end_of(play, i, TP.topic) == end for i in BROKERS))
    play.pass_time(6.0)  # the copies of the metadata are on the disks
    return copy, end


def operator(play: Play) -> SimClient:
    """Return a new connection to ZooKeeper."""
    client = play.world.zookeeper.client()
    play.simulation.run(lambda: client.session_id != NO_SESSION, limit_s=play.simulation.now_s + PATIENCE_S)
    return client


def refuses(play: Play) -> bool:
    return all((c := play[i].cluster) is not None and c.older_store for i in BROKERS)


def restored(play: Play) -> None:
    """Run the command's steps with the directories of all brokers, and wait until all are in sync with their
    records."""
    files = [play[i].machine.files for i in BROKERS]
    copies: list[ImageCopy] = [newest_copy(f, [DATA]) for f in files]
    newest = max(copies, key=lambda c: (c.image.generation, c.image.version))
    done = write_back(operator(play), newest)
    assert done.is_needed and not done.decided.refused
    play.until(lambda: not refuses(play) and play.world.controller_image() is not None)
    play.world._come_to_rest()


def check_nothing_is_lost(play: Play, end: int) -> None:
    image = play.world.controller_image()
    assert image is not None
    assert NEW in image.topics and OLD not in image.topics
    assert image.topics[TP.topic].configs["retention.ms"] == 86_400_000
    for i in BROKERS:
        assert (end_of(play, i, TP.topic), end_of(play, i, NEW), end_of(play, i, OLD)) == (end, 0, -1)
    assert play.acknowledged() == end


@pytest.mark.parametrize("new_zxids", [False, True])
def test_running_brokers_obey_no_older_copy(play: Play, new_zxids: bool) -> None:
    copy, end = changed_since(play)
    put_back(play, copy, new_zxids=new_zxids)
    play.until(lambda: refuses(play))
    play.pass_time(10 * SESSION_S)
    assert play.world.controller() is None
    assert play.acknowledged() == end  # existing leaderships continue, as while ZooKeeper is away
    assert all(end_of(play, i, NEW) == 0 for i in BROKERS)
    restored(play)
    check_nothing_is_lost(play, end + 3)


@pytest.mark.parametrize("new_zxids", [False, True])
def test_brokers_that_start_obey_no_older_copy(play: Play, new_zxids: bool) -> None:
    copy, end = changed_since(play)
    for i in BROKERS:
        play[i].stop(PATIENCE_S)
    put_back(play, copy, new_zxids=new_zxids)
    for i in BROKERS:
        play[i].start()
    play.simulation.run(lambda: all(play[i].failed for i in BROKERS), limit_s=play.simulation.now_s + PATIENCE_S)
    for i in BROKERS:
        assert "are older than this broker's copy" in play[i].failed
        play[i].kill()
    newest = newest_copy(play[1].machine.files, [DATA])
    assert write_back(operator(play), newest).is_needed
    for i in BROKERS:
        play[i].start()
    play.until(lambda: all(play[i].has_joined for i in BROKERS))
    play.world._come_to_rest()
    check_nothing_is_lost(play, end)


def test_a_newer_copy_ends_the_refusal(play: Play) -> None:
    copy, end = changed_since(play)
    newer = play.world.zookeeper.copy()
    put_back(play, copy, new_zxids=False)
    play.until(lambda: refuses(play))
    put_back(play, newer, new_zxids=True)
    play.until(lambda: not any((c := play[i].cluster) and c.older_store for i in BROKERS))
    play.world._come_to_rest()
    check_nothing_is_lost(play, end)


def test_an_empty_store_is_filled_from_a_copy(play: Play) -> None:
    _, end = changed_since(play)
    play.world.zookeeper.on_changes = lambda changes: None
    play.world._promises.look = lambda nodes: None  # type: ignore[method-assign]  # they look at the store
    put_back(play, type(play.world.zookeeper)(1).copy(), new_zxids=False)
    play.until(lambda: refuses(play))
    restored(play)
    check_nothing_is_lost(play, end)


def test_a_broker_that_has_seen_less_makes_no_other_lose_records(play: Play) -> None:
    """It was away since before the copy, so the older store is the newest for it, and it becomes the controller."""
    play[3].stop(PATIENCE_S)
    play.pass_time(1.0)
    copy = play.world.zookeeper.copy()
    make_on = [i for i in BROKERS if i != 3]
    play.until(lambda: (image := play.world.controller_image()) is not None and len(image.brokers) == 2)
    spec = TopicSpec(NEW, 1, replication_factor=2)
    play.world.at_controller(lambda broker: broker.topics.create(spec), limit_s=PATIENCE_S)
    end = play.acknowledged() + 3
    play.until(lambda: all(end_of(play, i, NEW) == 0 for i in make_on))
    for i in make_on:
        play[i].stop(PATIENCE_S)
    put_back(play, copy, new_zxids=True)
    play[3].start()
    play.until(play.world.controller)
    for n in range(20):  # its history is longer in the end
        play.ask_controller(lambda token, n=n: AlterConfig(token, TP.topic, {"retention.ms": 1_000_000_000 + n}))  # type: ignore[misc]
    for i in make_on:
        play[i].start()
    play.simulation.run(lambda: all(play[i].failed for i in make_on), limit_s=play.simulation.now_s + PATIENCE_S)
    for i in make_on:
        assert "controller epoch" in play[i].failed
        play[i].kill()
    newest = newest_copy(play[1].machine.files, [DATA])
    assert write_back(operator(play), newest).decided.restored == (NEW,)
    for i in make_on:
        play[i].start()
    play.world._come_to_rest()
    assert all(end_of(play, i, TP.topic) == end for i in BROKERS)
    assert play.acknowledged() == end


def lose_topic(play: Play, topic: str) -> None:
    """Delete the topic's nodes by hand, and have another controller elected."""
    nodes = play.world.zookeeper.znodes
    path = f"{znodes.TOPICS}/{topic}"
    gone = [f"{path}/{child}/{name}" for child in ("schemas", "state") for name in nodes.children(f"{path}/{child}")]
    gone += [f"{path}/{child}" for child in ("schemas", "state", "config")]
    operator(play).transaction([Delete(p) for p in (*gone, path, znodes.CONTROLLER)]).result()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_topic_that_the_store_has_lost_comes_back_with_its_records(play: Play, restarts: bool) -> None:
    end = play.acknowledged() + 3
    play.until(lambda: all(end_of(play, i, TP.topic) == end for i in BROKERS))
    play.pass_time(6.0)
    if restarts:
        for i in BROKERS:
            play[i].stop(PATIENCE_S)
    lose_topic(play, TP.topic) if not restarts else lose_topic_offline(play, TP.topic)
    if restarts:
        for i in BROKERS:
            play[i].start()
    play.until(lambda: all(play[i].has_joined and end_of(play, i, TP.topic) == -1 for i in BROKERS))
    play.pass_time(6.0)
    for i in BROKERS:
        broker = play[i].broker
        assert broker is not None and broker.cluster is not None
        assert sum(d.count_strays() for d in broker.storage.logs.directories.live) == 2
        assert list(broker.cluster.put_aside) == [TP.topic]
    copy = newest_copy(play[2].machine.files, [DATA])
    assert write_back(operator(play), copy).decided.restored == (TP.topic,)
    play.until(lambda: all(end_of(play, i, TP.topic) == end for i in BROKERS))
    play.world._come_to_rest()
    assert play.acknowledged() == end
    for i in BROKERS:
        broker = play[i].broker
        assert broker is not None and not any(d.count_strays() for d in broker.storage.logs.directories.live)
    assert not write_back(operator(play), copy).is_needed


def lose_topic_offline(play: Play, topic: str) -> None:
    operator(play).create(znodes.CONTROLLER, b"{}").result()
    lose_topic(play, topic)


def test_a_deleted_topic_goes_everywhere(play: Play) -> None:
    """A broker that was down meanwhile deletes its files after its return."""
    play[3].stop(PATIENCE_S)
    play.until(play.world.controller)
    play.ask_controller(lambda token: DeleteTopic(token, TP.topic))
    play.until(lambda: all(end_of(play, i, TP.topic) == -1 for i in (1, 2)))
    play[3].start()
    play.until(lambda: play[3].has_joined)
    play.pass_time(5.0)
    for i in BROKERS:
        assert not [n for n in play[i].machine.files.list_directory(DATA) if n.startswith(f"{TP.topic}-")]


def test_a_copy_of_another_cluster_is_not_written(play: Play) -> None:
    play.pass_time(6.0)
    assert CLUSTER_IMAGE_FILE in play[1].machine.files.list_directory(DATA)
    copy = newest_copy(play[1].machine.files, [DATA])
    other = ImageCopy("another", copy.image)
    with pytest.raises(AdoptionRefusedError, match="another"):
        write_back(operator(play), other)
