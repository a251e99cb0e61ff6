"""The decisions of `produce` and `consume` that need no broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer

from sparklog.cli.consume import _form
from sparklog.cli.input_lines import InputError
from sparklog.cli.produce import _SentRecords
from sparklog.errors import MessageTooLargeError


class RefusingProducer:
    """A producer that refuses a table, after it has taken some rows if `is_partial`."""

    def __init__(self, *, is_partial: bool) -> None:
        self._is_partial = is_partial

    def send_batch(self, topic: str, data: Any, *, partition: int | None) -> Any:
        error = MessageTooLargeError("a record of 99 bytes")
        if self._is_partial:
            raise MessageTooLargeError(f"{error} (1 of the 2 rows were already accepted)") from error
        raise error


def test_rows_that_the_producer_took_are_not_sent_again() -> None:
    table = pa.table({"a": [1, 2]})
    for is_partial, expected in ((False, MessageTooLargeError), (True, InputError)):
        producer: Any = RefusingProducer(is_partial=is_partial)
        with pytest.raises(expected, match="a record of 99 bytes"):
            _SentRecords("t", None).send(producer, table)


def test_output_format_goes_to_text_files() -> None:
    for name in ("x.txt", "x.csv", "x.jsonl", "x", "x.own"):
        assert _form("%s", None, Path(name))
    for name in ("x.parquet", "x.arrow", "x.txt.gz"):
        with pytest.raises(typer.BadParameter, match=f"writes text, which contradicts the ending of {name}"):
            _form("%s", None, Path(name))
