"""`Coordination` on ZooKeeper through kazoo, which `pip install 'sparklog[cluster]'` installs. Imported only on use.

| property of kazoo 2.11 | consequence here |
|---|---|
| calls that wait block a thread | `rawlink` passes results to futures |
| `Transaction` raises nothing; its list of results contains the errors | `_results` searches the list for errors |
| `Lock` and `Election` are not fenced | they are not used |
| LOST is reported with the next connection, not at the end of the session | the protocol promises no more |
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

from sparklog.metadata.coordination import (
    ANY_VERSION,
    NO_SESSION,
    BadVersionError,
    Check,
    ConnectionLossError,
    CoordinationError,
    Create,
    Delete,
    NoChildrenForEphemeralsError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Op,
    OpResult,
    SessionExpiredError,
    SessionState,
    SetData,
    Watch,
    ZooKeeperTls,
)
from sparklog.security.secrets import Secret

_ERRORS: dict[type[Exception], type[CoordinationError]] = {
    exceptions.NoNodeError: NoNodeError,
    exceptions.NodeExistsError: NodeExistsError,
    exceptions.BadVersionError: BadVersionError,
    exceptions.NotEmptyError: NotEmptyError,
    exceptions.NoChildrenForEphemeralsError: NoChildrenForEphemeralsError,
    exceptions.ConnectionLoss: ConnectionLossError,
    exceptions.OperationTimeoutError: ConnectionLossError,
    exceptions.SessionExpiredError: SessionExpiredError,
    exceptions.ConnectionClosedError: SessionExpiredError,
}
_STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}
_KAZOO_LOG = logging.getLogger(f"{__name__}.kazoo")
_KAZOO_LOG.setLevel(logging.INFO)
"""Messages below INFO are dropped: they quote kazoo's requests, which contain the login's password and the users'
records."""
_RETRY = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 1.0}


class ZooKeeper:
    """A ZooKeeper client; see `Coordination`. Created by `connect`."""

    def __init__(self, client: KazooClient, session_timeout_ms: int) -> None:
        self._client = client
        self._session_timeout_ms = session_timeout_ms
        self._lock = threading.Lock()
        self._listeners: list[Callable[[SessionState], None]] = []
        self._waited_s = 0.0
        """Time spent waiting between connection attempts since the last connection, in s."""
        client.add_listener(self._on_state)

    @classmethod
    def connect(
        cls,
        hosts: str,
        *,
        session_timeout_ms: int = 12_000,
        timeout_ms: int = 15_000,
        login: tuple[str, Secret] | None = None,
        set_acl: bool = False,
        tls: ZooKeeperTls | None = None,
    ) -> ZooKeeper:
        """Connect to ZooKeeper. `hosts`: `host:port` of the servers, separated by commas. A path after them is the root
        of all nodes, and is created if missing. `timeout_ms`: limit of the time until the first connection, and then of
        the time until the root exists, in ms. `set_acl`: True to give access to new nodes only to `login`; ignored
        without a login. Raises ConnectionLossError: No server answered within `timeout_ms`, or none had a valid
        certificate."""
        servers, slash, path = hosts.partition("/")
        secured: dict[str, Any] = {}
        if login is not None:
            name, password = login
            secured["auth_data"] = [("digest", f"{name}:{password.reveal()}")]
            if set_acl:
                secured["default_acl"] = [make_digest_acl(name, password.reveal(), all=True)]
        if tls is not None:
            secured |= {"use_ssl": True, "verify_certs": True, "check_hostname": tls.check_hostname}
            secured |= {"ca": tls.authorities} if tls.authorities else {}
            secured |= {"certfile": tls.identity, "keyfile": tls.identity} if tls.identity else {}
        zookeeper: ZooKeeper
        handler = SequentialThreadingHandler()
        handler.sleep_func = lambda seconds: zookeeper._wait_to_connect(seconds)
        retry = KazooRetry(**_RETRY, sleep_func=handler.sleep_func)
        client = KazooClient(
            servers,
            timeout=session_timeout_ms / 1_000,
            connection_retry=retry,
            handler=handler,
            logger=_KAZOO_LOG,
            **secured,
        )
        zookeeper = cls(client, session_timeout_ms)
        try:
            client.start(timeout_ms / 1_000)
            if path:  # a busy machine can lose a connection that it has just made
                KazooRetry(**_RETRY, deadline=timeout_ms / 1_000)(client.ensure_path, slash + path)
                client.chroot = slash + path.rstrip("/")  # in `hosts` it would keep kazoo from creating the path
        except Exception as e:
            zookeeper.close()
            raise ConnectionLossError(f"no ZooKeeper at {hosts!r} within {timeout_ms} ms: {e}") from e
        return zookeeper

    @property
    def session_id(self) -> int:
        session = self._client.client_id
        return int(session[0]) if session is not None else NO_SESSION

    @property
    def session_timeout_ms(self) -> int:
        return self._session_timeout_ms

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Future[Node]:
        def node(result: Any) -> Node:
            created, stat = result
            return _node(created, data, stat)

        return _future(self._client.create_async(path, data, ephemeral=ephemeral, include_data=True), node)

    def set_data(self, path: str, data: bytes, version: int = ANY_VERSION) -> Future[Node]:
        return _future(self._client.set_async(path, data, version), lambda stat: _node(path, data, stat))

    def get(self, path: str, watch: Watch | None = None) -> Future[Node | None]:
        """Read a node and watch it. If the node does not exist, ZooKeeper's call `exists` sets the watch. If the node
        was created before that call, it is read again."""
        future: Future[Node | None] = Future()
        watcher = _watcher(watch)

        def read() -> None:
            self._client.get_async(path, watcher).rawlink(on_read)

        def on_read(result: Any) -> None:
            error = result.exception
            if error is None:
                data, stat = result.value
                future.set_result(_node(path, data, stat))
            elif not isinstance(error, exceptions.NoNodeError):
                future.set_exception(_error(error))
            elif watcher is None:
                future.set_result(None)
            else:
                self._client.exists_async(path, watcher).rawlink(on_exists)

        def on_exists(result: Any) -> None:
            if result.exception is not None:
                future.set_exception(_error(result.exception))
            elif result.value is None:
                future.set_result(None)
            else:
                read()

        read()
        return future

    def children(self, path: str, watch: Watch | None = None) -> Future[list[str]]:
        return _future(self._client.get_children_async(path, _watcher(watch)), sorted)

    def delete(self, path: str, version: int = ANY_VERSION) -> Future[None]:
        return _future(self._client.delete_async(path, version), lambda _: None)

    def transaction(self, ops: Sequence[Op]) -> Future[list[OpResult]]:
        request = self._client.transaction()
        for op in ops:
            match op:
                case Create(path, data, ephemeral):
                    request.create(path, data, ephemeral=ephemeral)
                case SetData(path, data, version):
                    request.set_data(path, data, version)
                case Delete(path, version):
                    request.delete(path, version)
                case Check(path, version):
                    request.check(path, version)
        return _future(request.commit_async(), lambda results: _results(ops, results))

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        with self._lock:
            self._listeners.append(listener)

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    def _wait_to_connect(self, seconds: float) -> None:
        """Sleep between two attempts to connect. A server silently refuses a client that has seen a newer write than
        the server has. If no attempt succeeds for the session timeout, the server possibly has an older copy of its
        data. The client then forgets the newest write, so that it can connect and compare histories
        (`store_history`)."""
        self._waited_s += seconds
        if self._waited_s * 1_000 >= self._session_timeout_ms:
            self._client.last_zxid = 0
        SequentialThreadingHandler.sleep_func(seconds)

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._waited_s = 0.0
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener(_STATES[state])


def _future(result: Any, convert: Callable[[Any], Any]) -> Future[Any]:
    """Return kazoo's result as a future of the converted value. `convert` is allowed to raise a CoordinationError."""
    future: Future[Any] = Future()

    def done(source: Any) -> None:
        if source.exception is not None:
            future.set_exception(_error(source.exception))
            return
        try:
            value = convert(source.value)
        except CoordinationError as e:
            future.set_exception(e)
        else:
            future.set_result(value)

    result.rawlink(done)
    return future


def _results(ops: Sequence[Op], results: Sequence[Any]) -> list[OpResult]:
    """Return the results of a transaction, or raise the error of the failed operation. In kazoo's results of a failed
    transaction, the operations before the failed one have RolledBackError, those after it RuntimeInconsistency.
    """
    innocent = exceptions.RolledBackError, exceptions.RuntimeInconsistency
    errors = [(i, r) for i, r in enumerate(results) if isinstance(r, Exception)]
    for index, error in errors:
        if not isinstance(error, innocent):
            raise _error(error, index)
    if errors:
        raise _error(errors[0][1], errors[0][0])
    op_results = []
    for op, result in zip(ops, results, strict=True):
        match op:
            case Create():
                op_results.append(OpResult(result))
            case SetData(path):
                op_results.append(OpResult(path, result.version, result.mzxid))
            case _:
                op_results.append(OpResult(op.path))
    return op_results


def _node(path: str, data: bytes, stat: Any) -> Node:
    return Node(path, data, stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)


def _error(error: Exception, index: int = -1) -> CoordinationError:
    kind = next((ours for theirs, ours in _ERRORS.items() if isinstance(error, theirs)), CoordinationError)
    return kind(f"{type(error).__name__} {error}".strip(), index=index)


def _watcher(watch: Watch | None) -> Callable[[Any], None] | None:
    return None if watch is None else lambda _: watch()
