"""Tables of Spark's catalog, created by `CREATE TABLE … USING sparklog OPTIONS (…)`. A write that would create a table
without options is refused.

Spark gives a Python source the table's options only once: when it asks for the columns of a new table. A later read or
insert gets the columns, with the metadata that the catalog keeps of them, and no option. So the options are kept in the
metadata of the first column. The metadata of every column also has a mark. Rows are an insert into the table only if
all their columns have its mark.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql.types import StructField, StructType

from pyspark_sparklog.options.option_table import OptionUse, options_for
from sparklog.errors import InvalidConfigError
from sparklog.security.client_security import SecuritySettings, is_about_security

OPTIONS, MARK = "sparklog.table.options", "sparklog.table"
SUBSCRIPTIONS = ("subscribe", "assign", "subscribepattern")
_OPTION = "option."
SPARK_SUBMIT, SQL_SHELL = (
    b"org.apache.spark.deploy.SparkSubmit",
    b"org.apache.spark.sql.hive.thriftserver.SparkSQLCLIDriver",
)
ANCESTORS_MAX = 8
"""Number of ancestors of a Python process that are searched for Spark's driver; Spark's Python daemon is one of
them."""


def of_new_table(values: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of the table that Spark is creating; None if it is creating none.

    For a new table Spark also hands over properties, and each option twice. If the options name a topic only for writes
    (`topic`), the table also reads that topic. Raises InvalidConfigError without a topic, and for a literal secret.
    """
    lower = {name.lower(): value for name, value in values.items()}
    if lower.get("provider", "").lower() != "sparklog":
        return None
    options = {name.removeprefix(_OPTION): value for name, value in lower.items() if name.startswith(_OPTION)}
    options.pop("path", None)
    if not any(name in options for name in SUBSCRIPTIONS):
        if "topic" not in options:
            raise InvalidConfigError(
                "the table names no topic: CREATE TABLE t USING sparklog OPTIONS ('sparklog.bootstrap.servers' "
                "'host:port', subscribe 'topic')"
            )
        options["subscribe"] = options["topic"]
    _check_secrets(options)
    return options


def _check_secrets(options: Mapping[str, str]) -> None:
    """Refuse a password among a table's options. Raises InvalidConfigError.

    The catalog and the files of a metastore keep a table's options for all their readers.
    """
    short_names = {name: name.removeprefix("kafka.").removeprefix("sparklog.") for name in options}
    security = {
        short: options[name] for name, short in short_names.items() if name != short and is_about_security(short)
    }
    if literal := SecuritySettings(security).literal_secrets:
        raise InvalidConfigError(
            f"a table's options are kept in the catalog, where others can read {literal[0]}: write ${{file:/path}} in "
            "place of the secret, a file on the driver and on each executor that only Spark's user may read; or leave "
            "it out and give it with each query, as in SELECT … FROM t WITH (…)"
        )


def readable(options: Mapping[str, str]) -> dict[str, str]:
    """Return a table's options without those that only writes use."""
    return _used_options(options, OptionUse.SOURCE)


def kept_with(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return `schema` with the table's options and marks in the metadata of its columns."""
    text = json.dumps(dict(sorted(options.items())))
    mark = _mark(text, schema)
    fields = [StructField(f.name, f.dataType, f.nullable, {**f.metadata, MARK: mark}) for f in schema.fields]
    fields[0].metadata[OPTIONS] = text
    return StructType(fields)


def of_read(options: Mapping[str, str], schema: StructType, where: OptionUse) -> Mapping[str, str]:
    """Return the options of a read whose rows have `schema`. For a read of a table these are the table's options and
    those in `options`; if both have an option, the value in `options` counts. For any other read, also one that names
    topics in `options`, these are `options` alone."""
    text = _text(schema)
    lower = {name.lower(): value for name, value in options.items()}
    if not text or any(name in lower for name in SUBSCRIPTIONS):
        return options
    return _of_table(text, where) | lower


def of_write(values: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """Return the options of a write of rows with `schema`: `values`, or the table's options if `values` is empty and
    the rows are an insert into a table. If a table has no option `topic` and reads one topic, the insert goes to that
    topic."""
    text = _text(schema)
    if values or not text or any(f.metadata.get(MARK) != _mark(text, schema) for f in schema.fields):
        return values
    options = _of_table(text, OptionUse.SINK)
    only = _only_topic(_of_table(text, OptionUse.SOURCE))
    if only and "topic" not in options:
        options["topic"] = only
    return options


def tells_new_tables() -> bool:
    """True if a write that creates a table of the catalog can be recognised under this driver, by its SQL execution
    inside another one.

    That holds in programs of `pyspark` and `spark-submit`. The shell `spark-sql` runs each command inside another
    execution. Drivers that are started in other ways are not known to behave so.
    """
    pid = os.getpid()
    for _ in range(ANCESTORS_MAX):
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):
            return False
        if SPARK_SUBMIT in arguments:
            return SQL_SHELL not in arguments
    return False


def refuse_new_table() -> None:
    """Refuse a batch write that creates a table of the catalog. Called in a task, only if the driver
    `tells_new_tables`.

    Raises InvalidConfigError if the write creates a table: there is no way to give that table options.
    """
    context = TaskContext.get()
    if context is None or context.getLocalProperty("streaming.sql.batchId") is not None:
        return
    own, root = (context.getLocalProperty(f"spark.sql.execution.{name}") for name in ("id", "root.id"))
    if own is not None and root is not None and own != root:
        raise InvalidConfigError(
            "nothing is written: saveAsTable and writeTo(…).create() would leave a table without options, which "
            "nobody can "
            'read. Write with df.write.format("sparklog").option(…).mode("append").save(); for a table make one with '
            "CREATE "
            "TABLE t USING sparklog OPTIONS (…)"
        )


def _text(schema: StructType) -> str:
    return next((f.metadata[OPTIONS] for f in schema.fields if isinstance(f.metadata.get(OPTIONS), str)), "")


def _of_table(text: str, where: OptionUse) -> dict[str, str]:
    """Return the options in a column's metadata, without those that only other uses than `where` have. Raises
    InvalidConfigError if `text` is no JSON object."""
    try:
        options = {str(name): str(value) for name, value in json.loads(text).items()}
    except (ValueError, AttributeError) as e:
        raise InvalidConfigError(f"the table's columns lack sparklog's options ({e}): create the table again") from e
    return _used_options(options, where)


def _used_options(options: Mapping[str, str], where: OptionUse) -> dict[str, str]:
    here, everywhere = options_for(where), options_for(OptionUse.ALL)
    return {name: value for name, value in options.items() if name in here or name not in everywhere}


def _only_topic(options: Mapping[str, str]) -> str | None:
    if "assign" in options:
        topics = list(json.loads(options["assign"]))
    else:
        topics = [name.strip() for name in options.get("subscribe", "").split(",")]
    return topics[0] if len(topics) == 1 and topics[0] else None


def _mark(text: str, schema: StructType) -> str:
    return hashlib.sha256("\0".join([text, *schema.fieldNames()]).encode()).hexdigest()[:16]
