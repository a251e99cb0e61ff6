"""A topic that another process deletes and makes anew, with other columns, under a producer's feet."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import UnknownSchemaError

REPLACE = """
import sys, pyarrow as pa, sparklog
with sparklog.Admin(sys.argv[1]) as admin:
    admin.delete_topic("t")
    admin.create_topic("t", partitions=1, schema=pa.schema([("b", pa.int64())]))
"""


def test_batches_of_the_old_topic_are_refused_not_misread() -> None:
    with sparklog.start_local() as broker, sparklog.Admin(broker.bootstrap_servers) as admin:
        # the same layout under another name: nothing but the schema's id tells the batches apart
        admin.create_topic("t", partitions=1, schema=pa.schema([("a", pa.int64())]))
        with sparklog.Producer(broker.bootstrap_servers) as producer:
            producer.send_batch("t", {"a": [1]}).result(30)
            subprocess.run([sys.executable, "-c", REPLACE, broker.bootstrap_servers], check=True, timeout=60)
            with pytest.raises(UnknownSchemaError, match="schema"):
                producer.send_batch("t", {"a": [2]}).result(30)
            producer.send_batch("t", {"b": [3]}).result(30)
        assert sparklog.read_table(broker.bootstrap_servers, "t").to_pydict() == {"b": [3]}
