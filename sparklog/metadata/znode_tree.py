"""The tree of nodes of a `Coordination`: versions, zxids, ephemeral nodes, transactions. It has no clock, clients or
files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparklog.metadata.coordination import (
    ANY_VERSION,
    BadVersionError,
    Check,
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
    SetData,
)

Change = tuple[str, bool]
"""The path of a node; then True if the list of its children has changed, False if the node itself has changed."""


class _Znode(NamedTuple):
    data: bytes
    version: int
    czxid: int
    mzxid: int
    owner: int
    children: frozenset[str] = frozenset()


class Znodes:
    """The tree of nodes. A failed transaction changes nothing: `commit` works on a copy."""

    def __init__(self, nodes: Iterable[Node] = (), zxid: int = 0) -> None:
        """`nodes`: the initial nodes; `zxid`: the last transaction id so far."""
        self._nodes: dict[str, _Znode] = {"/": _Znode(b"", 0, 0, 0, 0)}
        self._zxid = zxid
        children: dict[str, list[str]] = {}
        for node in nodes:
            self._nodes[node.path] = _Znode(*node[1:])
            children.setdefault(_parent(node.path), []).append(node.path.rpartition("/")[2])
        for path, names in children.items():
            self._nodes[path] = self._nodes[path]._replace(children=frozenset(names))

    def copy(self) -> Znodes:
        """Return a copy. A commit to one of the two trees does not change the other tree."""
        copy = Znodes(zxid=self._zxid)
        copy._nodes = self._nodes
        return copy

    def skip_to(self, zxid: int) -> None:
        """Issue only zxids above `zxid` from now on."""
        self._zxid = max(self._zxid, zxid)

    @property
    def zxid(self) -> int:
        """The last issued zxid."""
        return self._zxid

    def next_zxid(self) -> int:
        self._zxid += 1
        return self._zxid

    def find(self, path: str) -> Node | None:
        node = self._nodes.get(path)
        return None if node is None else Node(path, node.data, node.version, node.czxid, node.mzxid, node.owner)

    def nodes(self) -> list[Node]:
        """Return all nodes but the root, each after its parent."""
        return [node for path in sorted(self._nodes) if path != "/" and (node := self.find(path)) is not None]

    def read(self, path: str) -> Node:
        """Return a node. Raises NoNodeError."""
        node = self.find(path)
        if node is None:
            raise NoNodeError(path)
        return node

    def children(self, path: str) -> list[str]:
        """Return the names of a node's children, sorted. Raises NoNodeError."""
        return sorted(_find_existing(self._nodes, path).children)

    def commit(
        self, ops: Sequence[Op], session_id: int, *, in_transaction: bool
    ) -> tuple[list[OpResult], list[Change]]:
        """Apply all `ops` or none, and return the results and the changed nodes. Raises the CoordinationError of the
        first operation that fails. `in_transaction`: True to set the error's `index`."""
        nodes = dict(self._nodes)
        zxid = self._zxid + 1
        results: list[OpResult] = []
        changes: list[Change] = []
        for index, op in enumerate(ops):
            try:
                results.append(_apply(nodes, op, zxid, session_id, changes))
            except CoordinationError as e:
                e.index = index if in_transaction else -1
                raise
        self._nodes, self._zxid = nodes, zxid
        return results, changes

    def end_session(self, session_id: int) -> list[Change]:
        """End a session: remove its ephemeral nodes, and return the changed nodes."""
        mine = sorted(path for path, node in self._nodes.items() if node.owner == session_id)
        return self.commit([Delete(path) for path in mine], session_id, in_transaction=True)[1]


def _apply(nodes: dict[str, _Znode], op: Op, zxid: int, session_id: int, changes: list[Change]) -> OpResult:
    match op:
        case Create(path, data, ephemeral):
            parent_path = _parent(path)
            parent = _find_existing(nodes, parent_path)
            if parent.owner:
                raise NoChildrenForEphemeralsError(parent_path)
            if path in nodes:
                raise NodeExistsError(path)
            name = path.rpartition("/")[2]
            nodes[parent_path] = parent._replace(children=parent.children | {name})
            nodes[path] = _Znode(data, 0, zxid, zxid, session_id if ephemeral else 0)
            changes += [(path, False), (parent_path, True)]
            return OpResult(path)
        case SetData(path, data, version):
            node = _find_existing(nodes, path, version)
            nodes[path] = node._replace(data=data, version=node.version + 1, mzxid=zxid)
            changes.append((path, False))
            return OpResult(path, node.version + 1, zxid)
        case Delete(path, version):
            if _find_existing(nodes, path, version).children:
                raise NotEmptyError(path)
            del nodes[path]
            parent_path = _parent(path)
            parent = nodes[parent_path]
            nodes[parent_path] = parent._replace(children=parent.children - {path.rpartition("/")[2]})
            changes += [(path, False), (path, True), (parent_path, True)]
            return OpResult(path)
        case Check(path, version):
            _find_existing(nodes, path, version)
            return OpResult(path)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _find_existing(nodes: dict[str, _Znode], path: str, version: int = ANY_VERSION) -> _Znode:
    node = nodes.get(path)
    if node is None:
        raise NoNodeError(path)
    if version not in (ANY_VERSION, node.version):
        raise BadVersionError(f"{path}: version {version} where {node.version} is expected")
    return node
