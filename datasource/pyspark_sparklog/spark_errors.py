"""The form in which Spark's user sees errors: one line that begins with the message.

A Python worker sends the JVM the text of the traceback, in which the message comes last. With `SPARK_HIDE_TRACEBACK` in
its environment it sends the exception alone (pyspark/util.py, `handle_worker_exception`), and exits. The variable is
set only when an error leaves the worker, so it has no other effect. Imports PySpark only, as the package's `__init__`
does.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("pyspark_sparklog")

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


def in_one_line(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap `function`, which Spark calls: a SparklogError that leaves it is shown without its traceback, which is
    logged at DEBUG. The traceback of any other error is shown."""
    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def generate(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
            try:
                yield from function(*args, **kwargs)
            except Exception as e:
                _prepare(e)
                raise

        return generate  # type: ignore[return-value]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Exception as e:
            _prepare(e)
            raise

    return call


def all_in_one_line(cls: type[T]) -> type[T]:
    """Apply `in_one_line` to the public methods of a reader or writer."""
    for name, member in list(vars(cls).items()):
        if inspect.isfunction(member) and not name.startswith("_"):
            setattr(cls, name, in_one_line(member))
    return cls


def _prepare(error: Exception) -> None:
    from sparklog.errors import SparklogError

    if isinstance(error, SparklogError) and _is_sparks_worker():
        log.debug("this error goes to Spark", exc_info=error)
        os.environ[HIDE_TRACEBACK] = "1"


def _is_sparks_worker() -> bool:
    """True if this process runs one of PySpark's own programs, which end after an error."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


@all_in_one_line
class FailedStreamReader(DataSourceStreamReader):
    """A stream reader that could not be created: its first call raises the reason. If `streamReader` raised the reason
    itself, Spark's runner would replace it by an error of its own, because it stops a reader that does not exist."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _fail(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        self._fail()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        self._fail()

    def getDefaultReadLimit(self) -> Any:
        self._fail()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        self._fail()

    def read(self, partition: Any) -> Any:
        self._fail()
