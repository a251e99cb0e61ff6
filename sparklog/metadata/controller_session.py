"""The controller's rules on a `Coordination`: election, loading of the image, fenced writes, watch on the brokers.

An election is one transaction: it creates `/controller` and sets `/controller_epoch` to the next epoch. Every write of
a controller sets `/controller_epoch` again at the version that this controller knows. A replaced controller therefore
cannot write: its first operation fails with BadVersion.

The version also shows the outcome of a write whose reply was lost, if the session and the epoch are the same. If the
version is one higher, the write succeeded. Otherwise the controller repeats the write, which can succeed only once.
Kafka's recipe checks the version without setting it, and cannot distinguish the two outcomes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from sparklog.errors import SparklogError
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.coordination import (
    BadVersionError,
    Check,
    ConnectionLossError,
    Coordination,
    CoordinationError,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Op,
    SessionExpiredError,
    SessionState,
    SetData,
    Steps,
    StoreWriteError,
    drive,
)
from sparklog.metadata.store_history import StoreMark, mark_of, older, read_mark
from sparklog.replication.cluster_image import UNKNOWN_WRITES, BrokerImage, ClusterImage, Version
from sparklog.replication.controller.controller import Controller
from sparklog.replication.controller.model import (
    BrokersChanged,
    Effect,
    ElectionResult,
    Event,
    Reload,
    Resign,
    SessionLost,
    Write,
    WriteOutcome,
    WriteResult,
)

logger = logging.getLogger(__name__)


class ControllerSession:
    """Runs the controller's rules on one broker. `handle` takes events; `on_effect` receives Answer, Refuse, Publish
    and Resign.

    `now_ms` is the clock; `call` runs a step on the thread of this object. `fenced` is False only in tests that show
    the need for the fence.
    """

    def __init__(
        self,
        coordination: Coordination,
        broker_id: int,
        controller: Controller,
        now_ms: Callable[[], int],
        on_effect: Callable[[Effect], None],
        *,
        call: Callable[[Callable[[], None]], None] = lambda step: step(),
        fenced: bool = True,
        seen: Callable[[], StoreMark] = StoreMark,
        cached_image: ClusterImage | None = None,
    ) -> None:
        """`seen` returns the mark of this broker's newest image (`store_history`). `cached_image` is an image of the
        store, read earlier: the controller uses it without another read if no controller has written since.
        """
        self._cached_image = cached_image
        self._zk = coordination
        self._broker_id = broker_id
        self._controller = controller
        self._now_ms = now_ms
        self._on_effect = on_effect
        self._call = call
        self._fenced = fenced
        self._epoch = -1
        self._fence = -1
        self._turn = 0
        self._watch = 0
        self._own_watch = 0
        self._stored = ClusterImage()
        self._seen = seen
        self.older = ""
        """The reason why the store is older than this broker's newest image; "" if the store is not older. While the
        store is older, the broker is not elected and takes no images.
        """
        self.is_comparing = False
        """True from a new connection until the store's history has been compared."""
        self._pending_write: Write | None = None
        self._is_retired = False
        self._is_contending = False
        self._must_retry = False
        """True if an election was requested during another election, which can fail with its connection."""
        self._has_failed = False
        """True from a write that failed on the store's disk until the next election or reload."""

    def start(self) -> None:
        """Stand for election now, and again each time that the cluster loses its controller."""
        self._zk.listen(lambda state: self._call(lambda: self._on_state(state)))
        self._contend()

    def retire(self) -> None:
        """Give up the controller's role before this broker stops, so that another broker is elected at once, not at the
        end of the session.
        """
        self._is_retired = True
        self.handle(SessionLost())
        self._drive(self._give_up_node())

    def _give_up_node(self) -> Steps:
        try:
            node = yield self._zk.get(znodes.CONTROLLER)
            if node is not None and node.owner == self._zk.session_id:
                yield self._zk.delete(znodes.CONTROLLER, node.version)
        except CoordinationError as e:
            logger.info("the brokers elect a new controller when this session ends: %s", e)

    def evict(self, broker_id: int) -> None:
        """Delete the controller's node if it belongs to the broker `broker_id`, so that the brokers elect another
        controller before its session ends. If that controller lives, it resigns."""
        if not self.older:
            self._drive(self._delete_node_of(broker_id))

    def _delete_node_of(self, broker_id: int) -> Steps:
        try:
            fence, node = yield [self._zk.get(znodes.CONTROLLER_EPOCH), self._zk.get(znodes.CONTROLLER)]
            if fence is None or node is None:
                return
            if znodes.decode(node.data, znodes.ControllerNode).broker_id == broker_id:
                # a write in between shows that the controller, or its successor, lives
                yield self._zk.transaction(
                    [Check(znodes.CONTROLLER_EPOCH, fence.version), Delete(znodes.CONTROLLER, node.version)]
                )
        except CoordinationError as e:
            logger.info("the controller's node is not deleted: %r", e)

    def handle(self, event: Event) -> None:
        """Pass an event to the controller's rules, and carry out their effects."""
        self._carry_out(self._controller.handle(event, self._now_ms()))

    def recheck(self) -> None:
        """Compare the store's history again if the store was older, and repeat an election or reload that a failed
        write stopped.
        """
        if self.older or self._has_failed:
            self._has_failed = False
            self._contend()

    # --- election

    def _on_state(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._turn += 1
            self._is_contending = False
            self.handle(SessionLost())
        elif state is SessionState.SUSPENDED:
            self.is_comparing = False
        elif state is SessionState.CONNECTED:
            self.is_comparing = True
            if self._controller.image is None:
                self._contend()
            else:
                self._watch_brokers()
                self._watch_own_node()
                if self._pending_write is not None:
                    self._drive(self._judge(self._pending_write))

    def _contend(self) -> None:
        if self._is_retired:
            return
        if self._is_contending:
            self._must_retry = True
        else:
            self._is_contending, self._must_retry = True, False
            self._drive(self._stand())

    def _retry(self) -> None:
        if self._controller.image is None:
            self._contend()

    def _stand(self) -> Steps:
        """Stand for election. At the end this broker is the controller, or watches the present controller's node. If
        the connection breaks, the broker stands again with the next connection.
        """
        turn = self._turn
        try:
            if (yield from self.is_older()):
                return
            yield from znodes.make_base(self._zk)
            while True:
                epoch_node, terms = yield [self._zk.get(znodes.CONTROLLER_EPOCH), self._zk.get(znodes.TERMS)]
                current = yield self._zk.get(znodes.CONTROLLER, lambda: self._call(self._retry))
                epoch = int(epoch_node.data)
                if current is not None and current.owner == self._zk.session_id:
                    if znodes.decode(current.data, znodes.ControllerNode).epoch == epoch:
                        break  # the reply to the election was lost, or a reload reads the image again
                elif current is not None:
                    return
                mine = znodes.encode(znodes.ControllerNode(self._broker_id, epoch + 1))
                try:
                    yield self._zk.transaction(
                        [
                            Create(znodes.CONTROLLER, mine, ephemeral=True),
                            SetData(znodes.CONTROLLER_EPOCH, b"%d" % (epoch + 1), epoch_node.version),
                            znodes.begin_term(
                                znodes.terms_in(terms),
                                znodes.Term(epoch + 1, self._zk.session_id, epoch_node.version + 1),
                            ),
                        ]
                    )
                except (NodeExistsError, BadVersionError):
                    continue
            if not (yield from self.is_older()):
                yield from self._take_over(epoch, epoch_node.version, epoch_node.mzxid)
        except (ConnectionLossError, SessionExpiredError):
            return
        except StoreWriteError as e:
            self._on_failed(e)
        finally:
            if turn == self._turn:
                self._is_contending = False
                if self._must_retry:
                    self._call(self._retry)

    def _on_failed(self, error: StoreWriteError) -> None:
        logger.error("the cluster's metadata cannot be written; the controller retries: %s", error)
        self._has_failed = True

    def is_older(self) -> Steps:
        """Compare the store's history with the newest image of this broker. Returns True if the store is older."""
        mark = yield from read_mark(self._zk)
        seen = self._seen()
        reason = older(mark, seen) or older(mark, mark_of(seen.cluster_id, self._stored))
        self.is_comparing = False
        if reason and reason != self.older:
            logger.error(
                "ZooKeeper's data are older than the copy of broker %d, or another cluster's (%s): the broker "
                "continues with its copy, deletes nothing and is not the controller. Restore newer data, or write "
                "the brokers' copies back: sparklog cluster restore-metadata", self._broker_id, reason,
            )  # fmt: skip
        elif self.older and not reason:
            logger.info(
                "ZooKeeper's data are as new as the copy of broker %d; the broker uses them again", self._broker_id
            )
        self.older = reason
        return bool(reason)

    def _take_over(self, epoch: int, fence: int, zxid: int) -> Steps:
        self._epoch, self._fence, self._pending_write = epoch, fence, None
        cached, self._cached_image = self._cached_image, None
        if cached is not None and cached.writes != UNKNOWN_WRITES and fence == cached.writes + 1:  # this election
            session = self._zk.session_id
            self._stored = replace(cached, version=Version(epoch, zxid), brokers={}, writes=fence, term=session)
        else:
            self._stored = yield from znodes.load_image(self._zk, epoch, zxid, fence)
        logger.info("broker %d is the controller, epoch %d", self._broker_id, epoch)
        self.handle(ElectionResult(self._stored))
        self._watch_brokers()
        self._watch_own_node()

    def _watch_own_node(self) -> None:
        """Watch the controller's node. An operator can delete the node to have another controller elected. Without the
        watch this controller would learn of the deletion only at its next write.
        """
        self._own_watch += 1
        self._drive(self._read_own_node(self._own_watch))

    def _read_own_node(self, watch: int) -> Steps:
        def on_watch() -> None:
            if watch == self._own_watch and self._controller.image is not None:
                self._watch_own_node()

        try:
            node = yield self._zk.get(znodes.CONTROLLER, lambda: self._call(on_watch))
            fence = yield self._zk.get(znodes.CONTROLLER_EPOCH)
        except (ConnectionLossError, SessionExpiredError):
            return  # read again with the next connection
        self.is_comparing = False  # a controller's own image is the newest, and its writes are fenced
        is_own = node is not None and node.owner == self._zk.session_id
        if not is_own or znodes.decode(node.data, znodes.ControllerNode).epoch != self._epoch:
            self.handle(SessionLost())
        elif self._controller.image is not None and (fence is None or fence.version < self._fence):
            self.handle(SessionLost())  # an older copy of the store; the next candidate compares

    # --- brokers

    def _watch_brokers(self) -> None:
        """Read the registered brokers and watch them. Earlier watches are ignored from now on, so that a new connection
        does not add a second watch."""
        if self._controller.image is not None:
            self._watch += 1
            self._drive(self._read_brokers(self._watch))

    def _on_watch(self, watch: int) -> None:
        if watch == self._watch:
            self._watch_brokers()

    def _read_brokers(self, watch: int) -> Steps:
        try:
            ids = yield self._zk.children(znodes.BROKER_IDS, lambda: self._call(lambda: self._on_watch(watch)))
            nodes = yield [self._zk.get(f"{znodes.BROKER_IDS}/{i}") for i in ids]
        except (ConnectionLossError, SessionExpiredError):
            return  # read again with the next connection
        brokers: dict[int, BrokerImage] = {}
        for name, node in zip(ids, nodes, strict=True):
            if node is not None:
                brokers[int(name)] = znodes.broker_image(int(name), node)
        self.handle(BrokersChanged(brokers))

    # --- writing

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Write):
                self._drive(self._write(effect))
            elif isinstance(effect, Reload):
                if not self._has_failed:  # after a failed write `recheck` repeats the reload
                    self._contend()
            else:
                self._on_effect(effect)
                if isinstance(effect, Resign):
                    self._pending_write = None
                    self._contend()

    def _write(self, write: Write) -> Steps:
        fence: Op = SetData(znodes.CONTROLLER_EPOCH, b"%d" % self._epoch, self._fence if self._fenced else -1)
        self._pending_write = write
        try:
            results = yield self._zk.transaction([fence, *znodes.write_ops(write.delta, self._stored, write.after)])
        except (ConnectionLossError, SessionExpiredError):
            return  # `_judge` decides with the next connection; the end of the session discards the write
        except StoreWriteError as e:
            self._on_failed(e)
            self._on_written(write, WriteOutcome.CONFLICT, error=e.reason)
        except CoordinationError as e:
            outcome = WriteOutcome.FENCED if e.index == 0 else WriteOutcome.CONFLICT
            self._on_written(write, outcome)
        else:
            self._on_written(write, WriteOutcome.OK, results[0].version, results[0].mzxid)

    def _judge(self, write: Write) -> Steps:
        try:
            current = yield self._zk.get(znodes.CONTROLLER)
            node = yield self._zk.get(znodes.CONTROLLER_EPOCH)
        except (ConnectionLossError, SessionExpiredError):
            return
        if self._pending_write is not write:
            return
        if current is None or current.owner != self._zk.session_id or int(node.data) != self._epoch:
            self._on_written(write, WriteOutcome.FENCED)
        elif node.version == self._fence + 1:
            self._on_written(write, WriteOutcome.OK, node.version, node.mzxid)
        else:
            yield from self._write(write)

    def _on_written(
        self,
        write: Write,
        outcome: WriteOutcome,
        fence: int = -1,
        zxid: int = -1,
        error: SparklogError | None = None,
    ) -> None:
        if self._pending_write is not write:
            return
        self._pending_write = None
        version = Version(self._epoch, zxid)
        if outcome is WriteOutcome.OK:
            self._fence = fence
            self._stored = replace(write.after, version=version)
        self.handle(WriteResult(write.tag, outcome, version, error))

    def _drive(self, steps: Steps) -> None:
        """Run `steps`; stop them at the end of the session."""
        drive(self._of_this_turn(steps), self._call)

    def _of_this_turn(self, steps: Steps) -> Steps:
        turn = self._turn
        send: Callable[[], Any] = lambda: next(steps)  # noqa: E731
        while True:
            try:
                waiting = send()
            except StopIteration:
                return
            except NoNodeError:
                logger.exception("nodes of the cluster are missing; the controller of broker %d waits", self._broker_id)
                return
            try:
                result = yield waiting
            except CoordinationError as e:
                error = e
                send = lambda: steps.throw(error)  # noqa: B023, E731
            else:
                send = lambda: steps.send(result)  # noqa: B023, E731
            if turn != self._turn:
                steps.close()
                return
