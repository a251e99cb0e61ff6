"""The value of `--schema`: a Spark DDL string, or a file with Spark's schema JSON, Arrow or Parquet."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from sparklog.errors import InvalidTopicError
from sparklog.format.ddl import parse_ddl
from sparklog.format.spark_json import parse_spark_json

FILE_ENDINGS = (".json", ".arrow", ".ipc", ".feather", ".arrows", ".parquet", ".avsc", ".csv", ".jsonl")


def load_schema(text: str) -> pa.Schema:
    """Return the schema of the DDL `text`, or of the file `text` if it has an ending of FILE_ENDINGS. Raises
    InvalidTopicError."""
    path = Path(text)
    if path.suffix.lower() not in FILE_ENDINGS:
        return parse_ddl(text)
    ending = path.suffix.lower()
    try:
        if ending == ".json":
            return parse_spark_json(path.read_text(encoding="utf-8"))
        if ending in (".arrow", ".ipc", ".feather", ".arrows"):
            return _arrow_schema(path)
        if ending == ".parquet":
            import pyarrow.parquet as pq

            return pq.read_schema(path).remove_metadata()
    except OSError as e:
        raise InvalidTopicError(f"schema file {text!r} cannot be read: {e.strerror or e}") from e
    except (pa.ArrowException, UnicodeDecodeError) as e:
        raise InvalidTopicError(f"schema file {text!r} is no {ending[1:]} file: {e}") from e
    raise InvalidTopicError(
        f"schema file {text!r}: {ending} files hold no Arrow or Spark schema; "
        'use .json (df.schema.json()), .arrow, .parquet or a DDL string such as "a INT, b STRING"'
    )


def _arrow_schema(path: Path) -> pa.Schema:
    with pa.OSFile(str(path)) as file:
        is_file_format = file.read(6) == b"ARROW1"
        file.seek(8 if is_file_format else 0)
        # stream and file format both begin with the schema message; an unsealed segment lacks the file's footer
        return pa.ipc.read_schema(file).remove_metadata()
