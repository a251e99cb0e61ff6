"""Deletion vectors in Delta tables, as Spark writes them: the package deltalake reads them only."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

_MAGIC = 1_681_511_377
_COOKIE_WITHOUT_RUNS = 12_346
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def delete_by_vector(table: Path, rows: Sequence[int]) -> None:
    """Delete rows of the newest file of a table, in a new version.

    Args:
        table: Directory of the table.
        rows: An even number of positions in the file, below 65536.
    """
    versions = sorted((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for version in versions for line in version.read_text().splitlines()]
    added = [a["add"] for a in actions if "add" in a][-1]
    bitmap = struct.pack("<IQI", _MAGIC, 1, 0)
    bitmap += struct.pack("<IIHHI", _COOKIE_WITHOUT_RUNS, 1, 0, len(rows) - 1, 16)
    bitmap += struct.pack(f"<{len(rows)}H", *sorted(rows))
    vector = {
        "storageType": "i",
        "pathOrInlineDv": _z85(bitmap),
        "sizeInBytes": len(bitmap),
        "cardinality": len(rows),
    }
    names = ["deletionVectors"]
    removed = {"path": added["path"], "deletionTimestamp": 1, "dataChange": True, "extendedFileMetadata": False}
    commit = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": names, "writerFeatures": names}},
        {"remove": removed},
        {"add": {**added, "dataChange": True, "deletionVector": vector}},
        {"commitInfo": {"timestamp": 1, "operation": "DELETE", "operationParameters": {}}},
    ]
    newest = versions[-1].with_name(f"{len(versions):020d}.json")
    newest.write_text("".join(json.dumps(action) + "\n" for action in commit))


def _z85(data: bytes) -> str:
    found = ""
    for (value,) in struct.iter_unpack(">I", data):
        found += "".join(_Z85[value // 85**power % 85] for power in range(4, -1, -1))
    return found
