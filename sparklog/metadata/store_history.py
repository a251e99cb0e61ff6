"""Comparison of the store's history with the newest image that a broker has seen.

The data in ZooKeeper can be replaced by an older copy, or by the data of another cluster. A broker that applied such
data would truncate logs and delete replicas of the newer history. So each broker compares:

| the store, compared with the broker's newest image | the broker |
|---|---|
| has the same generation, and no number is lower | uses it |
| has a higher generation: an operator has written the metadata back (`sparklog cluster restore-metadata`) | uses it |
| has a lower controller epoch, zxid of the controllers' last write, number of their writes, or generation | refuses |
| has continued from an older point: a newer controller epoch began before the write of the image | refuses |
| has another cluster's id, or none | refuses |

A broker that refuses the store is not elected and takes no images; if it is starting, it does not start. A running
broker goes on leading and replicating its partitions, as during an outage of ZooKeeper.

Within one history no number falls. The zxid alone is not enough: an ensemble that starts from an older copy begins a
new epoch of zxids, all of them higher.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.cluster_znodes import Term
from sparklog.metadata.coordination import NoNodeError, Steps
from sparklog.replication.cluster_image import NO_EPOCH, UNKNOWN_WRITES, ClusterImage

_WRAPS = 1 << 32
"""ZooKeeper counts a node's versions in 32 bits."""
_NO_NODE = "/controller_epoch/none"


class StoreMark(NamedTuple):
    """A point in the store's history. In the mark of a broker's image, a field with its default value is unknown, and
    nothing is older than it."""

    cluster_id: str = ""
    controller_epoch: int = NO_EPOCH
    zxid: int = NO_EPOCH
    """Transaction id of the controllers' last write."""
    writes: int = UNKNOWN_WRITES
    """Number of the controllers' writes."""
    generation: int = 0
    term: int = 0
    """Session of the controller in this controller epoch; 0 if not known."""
    terms: tuple[Term, ...] = ()
    """The controller epochs that the store lists now."""


def mark_of(cluster_id: str, image: ClusterImage) -> StoreMark:
    """Return the point in the history at which the store had `image`."""
    return StoreMark(cluster_id, *image.version, image.writes, image.generation, image.term)


def older(one: StoreMark, other: StoreMark) -> str:
    """Compare the store's mark `one` with `other`, the mark of a broker's image. Returns the reason why `one` is older
    than `other` or belongs to another cluster; otherwise ""."""
    if other.cluster_id and one.cluster_id != other.cluster_id:
        return f"its cluster id is {one.cluster_id or 'none'}, not {other.cluster_id}"
    if one.generation != other.generation:
        is_older = one.generation < other.generation
        return f"its generation is {one.generation}, earlier {other.generation}" if is_older else ""
    if one.controller_epoch < other.controller_epoch:
        return f"its controller epoch is {one.controller_epoch}, earlier {other.controller_epoch}"
    if one.zxid < other.zxid:
        return f"its last write of a controller is zxid {one.zxid:#x}, earlier {other.zxid:#x}"
    if UNKNOWN_WRITES not in (one.writes, other.writes) and _is_less(one.writes, other.writes):
        return f"its controllers have made {one.writes} writes, earlier {other.writes}"
    return _branch(one.terms, other)


def _branch(terms: tuple[Term, ...], other: StoreMark) -> str:
    """Return the reason why a history with `terms` and higher numbers does not contain the point `other`; "" if no term
    contradicts `other`."""
    for term in terms:
        if term.epoch == other.controller_epoch and other.term not in (0, term.session):
            return f"another controller had the controller epoch {term.epoch}"
        is_before = term.epoch > other.controller_epoch and other.writes != UNKNOWN_WRITES
        if is_before and _is_less(term.first_write, other.writes):
            return f"controller epoch {term.epoch} began with write {term.first_write}, below write {other.writes} of an earlier epoch"
    return ""


def _is_less(one: int, other: int) -> bool:
    return (one - other) % _WRAPS >= _WRAPS // 2


def catch_up(coordination: Any) -> Steps:
    """Wait until the server of this connection has all writes made before the call.

    The steps delete a node that never exists. The call fails, but as a write it passes the leader of the ensemble, so
    that later reads of the same session see all earlier writes.
    """
    with contextlib.suppress(NoNodeError):
        yield coordination.delete(_NO_NODE)


def read_mark(coordination: Any) -> Steps:
    """Return the store's present StoreMark. Creates no node."""
    yield from catch_up(coordination)
    paths = znodes.CLUSTER, znodes.CONTROLLER_EPOCH, znodes.TERMS
    cluster, epoch, terms = yield [coordination.get(path) for path in paths]
    mark = StoreMark(terms=znodes.terms_in(terms))
    if cluster is not None:
        node = znodes.decode(cluster.data, znodes.ClusterNode)
        mark = mark._replace(cluster_id=node.cluster_id, generation=node.generation)
    if epoch is not None:
        mark = mark._replace(controller_epoch=int(epoch.data), zxid=epoch.mzxid, writes=epoch.version)
    return mark
