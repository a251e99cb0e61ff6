"""Deletions by order, and metadata that are written back into an older store."""

from __future__ import annotations

from msgspec.structs import replace

from sparklog.metadata.cluster_znodes import Term
from sparklog.metadata.image_copy import ImageCopy, decode_copy, encode_copy
from sparklog.metadata.store_history import StoreMark, older
from sparklog.replication.cluster_image import (
    DELETED_MAX,
    NO_LEADER,
    ClusterImage,
    DeletedTopic,
    PartitionImage,
    TopicImage,
    Version,
)
from sparklog.replication.controller.draft import Draft
from sparklog.replication.controller.model import ALL_SAFEGUARDS
from sparklog.replication.restoration import EPOCHS_SKIPPED, changes_of, difference, is_restored, restore
from sparklog.security.records import RecordId

PARTITION = PartitionImage((1, 2), 1, 3, 5, (1, 2))


def topic(name: str, topic_id: str = "", partition: PartitionImage = PARTITION) -> TopicImage:
    return TopicImage(name, topic_id or f"id-{name}", (partition,), schemas={1: b"s"})


def image(*topics: TopicImage, deleted: dict[str, DeletedTopic] | None = None, **more: object) -> ClusterImage:
    base = ClusterImage(Version(4, 100), topics={t.name: t for t in topics}, deleted=deleted or {}, writes=7)
    return replace(base, **more)


# --- deletions


def test_a_deletion_is_an_order_with_the_id_and_the_oldest_orders_go_first() -> None:
    many = {f"old-{n}": DeletedTopic("t", n) for n in range(DELETED_MAX)}
    draft = Draft(image(topic("a"), topic("b"), deleted=many), {}, ALL_SAFEGUARDS)
    draft.delete_topic("a")
    draft.delete_topic("b")
    after = draft.image()
    assert not after.topics
    assert after.deleted.keys() == many.keys() - {"old-0", "old-1"} | {"id-a", "id-b"}
    assert max(after.deleted.values(), key=lambda d: d.number) == DeletedTopic("b", DELETED_MAX + 1, 3)


def test_more_deletions_at_once_than_are_kept_leave_the_newest() -> None:
    names = [f"t{n:04}" for n in range(DELETED_MAX + 5)]
    draft = Draft(image(*map(topic, names)), {}, ALL_SAFEGUARDS)
    for name in names:
        draft.delete_topic(name)
    assert list(draft.image().deleted) == [f"id-{name}" for name in names[5:]]


# --- the store's history


SEEN = StoreMark("c", 4, 100, 50, 1, 77)


def test_no_number_of_a_history_falls() -> None:
    same = SEEN._replace(terms=(Term(4, 77, 40),))
    assert not older(same, SEEN)
    assert not older(SEEN, StoreMark())
    later = StoreMark("c", 6, 900, 90, 1, 5, (Term(4, 77, 40), Term(5, 8, 50), Term(6, 5, 70)))
    assert not older(later, SEEN)
    assert not older(later._replace(terms=()), SEEN), "a store without terms contradicts nothing"
    assert not older(SEEN._replace(generation=2, zxid=1, writes=1, controller_epoch=1), SEEN)
    assert not older(SEEN._replace(writes=-(2**31) + 3), SEEN._replace(writes=2**31 - 2)), "32 bits have wrapped"
    for one, reason in (
        (same._replace(cluster_id="d"), "cluster id is d"),
        (same._replace(cluster_id=""), "cluster id is none"),
        (same._replace(generation=0, zxid=10**9), "generation"),
        (same._replace(controller_epoch=3), "controller epoch is 3"),
        (same._replace(zxid=99), "zxid"),
        (same._replace(writes=49), "49 writes"),
        (StoreMark(), "cluster id is none"),
    ):
        assert reason in older(one, SEEN), one


def test_a_history_that_has_gone_on_from_an_older_point_is_another_one() -> None:
    """All its numbers are higher."""
    longer = StoreMark("c", 9, 10**9, 500, 1, 5)
    assert "another controller had" in older(longer._replace(terms=(Term(4, 78, 40),)), SEEN)
    assert "began with write 45" in older(longer._replace(terms=(Term(4, 77, 40), Term(5, 9, 45))), SEEN)


# --- the metadata come back


def test_an_older_store_gets_the_copys_content() -> None:
    stored = image(topic("kept"), topic("gone"), topic("unknown"), configs={"a": 1}, known={1: 5, 9: 9})
    newer = replace(PARTITION, leader=2, leader_epoch=9, partition_epoch=20, isr=(2,))
    copy = image(
        topic("kept", partition=newer),
        topic("new"),
        topic("gone", "id-of-another"),
        deleted={"id-gone": DeletedTopic("gone", 0)},
        configs={"b": 2},
        known={1: 8},
    )
    done = restore(stored, copy, {"id-aside": topic("aside")}, is_older=True)
    assert (done.restored, done.refused) == (("aside", "gone", "new"), ())
    after = done.after
    assert {t.name: t.topic_id for t in after.topics.values()} == {
        "kept": "id-kept", "gone": "id-of-another", "new": "id-new", "unknown": "id-unknown", "aside": "id-aside",
    }  # fmt: skip
    (partition,) = after.topics["kept"].partitions
    assert partition == replace(
        newer, leader=NO_LEADER, last_leader=2, leader_epoch=9 + EPOCHS_SKIPPED, partition_epoch=20 + EPOCHS_SKIPPED
    )
    assert is_restored(partition) and not is_restored(PARTITION)
    assert (after.configs, after.known) == ({"b": 2}, {1: 8, 9: 9})
    assert stored.apply(difference(stored, after), Version(5, 1)).topics == after.topics


def test_added_partitions_are_restored_and_reported() -> None:
    small, large = topic("t"), replace(topic("t"), partitions=(PARTITION,) * 4)
    other = replace(topic("settings"), configs={"retention.ms": 1})
    gone = {"id-gone": DeletedTopic("gone", 0)}
    records = {RecordId("users", "a"): b"1", RecordId("acls", "b"): b"2"}
    stored = image(small, topic("settings"), topic("gone"), security={RecordId("users", "old"): b"0"})
    copy = image(large, other, topic("new"), deleted=gone, security=records, configs={"x": 1})
    done = restore(stored, copy, {}, is_older=True)
    assert len(done.after.topics["t"].partitions) == 4
    assert changes_of(stored, done.after) == [
        ("topic    settings", "has other settings or schemas"),
        ("topic    t", "has 4 partitions, the store lacks 1 to 3"),
        ("topic    gone", "was deleted, but the store has it"),
        ("records  acls", "1 are written, 0 are removed"),
        ("records  broker settings", "1 are written, 0 are removed"),
        ("records  users", "1 are written, 1 are removed"),
    ]
    assert changes_of(done.after, done.after) == []
    back = restore(image(large), image(small), {}, is_older=True).after.topics["t"].partitions
    assert len(back) == 4 and back[1:] == large.partitions[1:], "a copy that lacks partitions deletes none"


def test_epochs_are_above_those_of_both_sides() -> None:
    ahead = replace(PARTITION, leader_epoch=50, partition_epoch=60)
    done = restore(image(topic("t", partition=ahead)), image(topic("t")), {}, is_older=True)
    (partition,) = done.after.topics["t"].partitions
    assert (partition.leader_epoch, partition.partition_epoch) == (50 + EPOCHS_SKIPPED, 60 + EPOCHS_SKIPPED)


def test_a_store_that_is_not_older_gets_only_topics_that_were_put_aside() -> None:
    stored = image(topic("t"), topic("taken", "other"), deleted={"id-deleted": DeletedTopic("deleted", 3)})
    aside = {f"id-{name}": topic(name) for name in ("lost", "taken", "deleted", "t")}
    done = restore(stored, image(topic("only-in-the-copy")), aside, is_older=False)
    assert (done.restored, done.refused) == (("lost",), ("taken",))
    assert done.after.topics["t"] is stored.topics["t"]
    assert done.after.topics["taken"].topic_id == "other"
    delta = difference(stored, done.after)
    assert list(delta.topics) == ["lost"] and not delta.configs and not delta.deleted


def test_the_copy_on_the_disk_is_whole_or_absent() -> None:
    copy = ImageCopy("c", image(topic("t"), known={1: 5}), {"id-x": topic("x")})
    data = encode_copy(copy)
    assert decode_copy(data) == copy
    for position in range(0, len(data), 7):
        assert decode_copy(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]) is None
        assert decode_copy(data[:position]) is None
