"""Arguments of public calls, checked where the call begins: an error names the argument, its value and the allowed
values.

A reader takes the argument's name and value, and returns the value in the form that the call works with. It raises
InvalidRequestError. `takes` puts readers before a function.
"""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

from sparklog.errors import InvalidRequestError
from sparklog.types import TOPIC_NAME_CHARS_MAX, TopicPartition, whole_number

P = ParamSpec("P")
R = TypeVar("R")
Reader = Callable[[str, Any], Any]

Partitions = TopicPartition | Iterable[TopicPartition]
"""One partition, or any number of them."""
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
DEPTH_MAX = 10
"""Largest depth of nested lists of partitions. A list that contains itself ends there."""
_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_ADDRESSES = re.compile(r"[^\s,:]+:\d+(,[^\s,:]+:\d+)*")
SHOWN_CHARS_MAX = 100
"""Largest number of characters of a wrong value that an error shows."""


def refuse(argument: str, value: object, allowed: str) -> NoReturn:
    """Refuse a wrong argument. Raises InvalidRequestError."""
    shown = repr(value)
    if len(shown) > SHOWN_CHARS_MAX:
        shown = f"{shown[:SHOWN_CHARS_MAX]}…"
    raise InvalidRequestError(f"{argument} = {shown}: {allowed}")


def text(argument: str, value: object) -> str:
    """Return a text that can be sent; lone surrogates cannot."""
    if not isinstance(value, str):
        refuse(argument, value, "a text is needed")
    try:
        value.encode()
    except UnicodeEncodeError:
        refuse(argument, value, "the text is not valid Unicode: it has an unpaired surrogate")
    return value


def name(argument: str, value: object) -> str:
    """Return the name of a topic or a group."""
    topic_name = text(argument, value)
    if len(topic_name) > TOPIC_NAME_CHARS_MAX:
        refuse(argument, value, f"a name has at most {TOPIC_NAME_CHARS_MAX} characters")
    return topic_name


def texts(argument: str, value: object) -> list[str]:
    """Return the list for an argument that is one text or several."""
    if isinstance(value, str):
        return [text(argument, value)]
    if not isinstance(value, Iterable) or isinstance(value, bytes | bytearray | memoryview):
        refuse(argument, value, "use a list of str")
    return [text(argument, item) for item in value]


def whole(minimum: int = 0, maximum: int = INT64_MAX) -> Reader:
    """Return a reader of whole numbers from `minimum` to `maximum`."""

    def read(argument: str, value: object) -> int:
        number = whole_number(value)
        if number is None or not minimum <= number <= maximum:
            refuse(argument, value, f"a whole number from {minimum} to {maximum} is needed")
        return number

    return read


timeout = whole(1, INT32_MAX)
"""A reader of time limits in ms."""
broker_id = whole(0, INT32_MAX)


def wait(argument: str, value: object) -> float:
    """Return a time to wait, in the unit of the argument: a negative one counts as 0, one above INT32_MAX as
    INT32_MAX."""
    seconds = real(argument, value, "a number is needed")
    if math.isnan(seconds):
        refuse(argument, value, "a number is needed")
    return min(max(seconds, 0), INT32_MAX)


def real(argument: str, value: object, allowed: str) -> float:
    """Return a number of any library, such as a NumPy float; `allowed` is the text of the error."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        refuse(argument, value, allowed)
    whole_value = whole_number(value)
    return float(value) if whole_value is None else whole_value  # no float holds a large int


def flag(argument: str, value: object) -> bool:
    """Return True or False; refuse every other value."""
    if not isinstance(value, bool):
        refuse(argument, value, "use True or False")
    return value


def partition(argument: str, value: Any) -> TopicPartition:
    """Return the argument as a TopicPartition. It is one already, or another pair of a topic and a number."""
    if not _is_partition(value):
        refuse(argument, value, "TopicPartition(topic, partition) is needed")
    topic, number = value
    return TopicPartition(text(argument, topic), whole(0, INT32_MAX)(argument, number))


def _is_partition(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


def partitions(argument: str, value: object, depth: int = 0) -> list[TopicPartition]:
    """Return the list for an argument that is one partition or several; nested lists count as their content."""
    if _is_partition(value):
        return [partition(argument, value)]
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | bytearray | memoryview):
        refuse(argument, value, "use a TopicPartition(topic, partition), or a list of them")
    if depth > DEPTH_MAX:
        refuse(argument, value, f"at most {DEPTH_MAX} lists are nested")
    collected: list[TopicPartition] = []
    for item in value:
        is_list = isinstance(item, list | tuple | set | frozenset) and not _is_partition(item)
        collected += partitions(argument, item, depth + 1) if is_list else [partition(argument, item)]
    return collected


def mapping(key: Reader, content: Reader) -> Reader:
    """Return a reader of dictionaries: `key` reads their keys, `content` their values."""

    def read(argument: str, value: object) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            refuse(argument, value, "a dictionary is needed")
        return {key(argument, k): content(f"{argument}[{k!r}]", v) for k, v in value.items()}

    return read


def listed(content: Reader) -> Reader:
    """Return a reader of lists, whose items `content` reads."""

    def read(argument: str, value: object) -> list[Any]:
        if not isinstance(value, Iterable) or isinstance(value, str | bytes | bytearray | memoryview | Mapping):
            refuse(argument, value, "a list is needed")
        return [content(argument, item) for item in value]

    return read


def instance(*kinds: type) -> Reader:
    """Return a reader of objects of these classes."""

    def read(argument: str, value: object) -> object:
        if not isinstance(value, kinds):
            refuse(argument, value, f"{' or '.join(k.__name__ for k in kinds)} is needed")
        return value

    return read


def function(argument: str, value: object) -> Callable[..., Any]:
    """Return a function, or another object that can be called."""
    if not callable(value):
        refuse(argument, value, "a function is needed")
    return value


def anything(argument: str, value: object) -> object:
    """Return the value as it is: the call checks it later."""
    return value


def optional(reader: Reader) -> Reader:
    """Return a reader that takes None, too."""
    return lambda argument, value: None if value is None else reader(argument, value)


def takes(**readers: Reader) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that reads the named arguments of a function before each call. Defaults are not read. A reader
    for `*args` gets all of them as one tuple, and returns a list. For a call that does not fit the parameters, the
    TypeError names the wrong argument and the right one."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters
        names = [n for n, p in parameters.items() if p.kind is not p.VAR_POSITIONAL]
        rest = next((n for n, p in parameters.items() if p.kind is p.VAR_POSITIONAL), None)
        assert readers.keys() <= parameters.keys()
        called_name = function.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__")

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            fixed = len(args) if rest is None else list(parameters).index(rest)
            values: list[Any] = [
                readers[name](name, value) if name in readers else value
                for name, value in zip(names, args[:fixed], strict=False)
            ]
            if rest is not None:
                values += readers[rest](rest, args[fixed:])
            elif len(args) > len(values):
                values += args[len(values) :]  # too many: the function says so
            named = {k: readers[k](k, v) if k in readers else v for k, v in kwargs.items()}
            try:
                return function(*values, **named)  # type: ignore[arg-type]
            except TypeError as e:
                is_of_the_call = e.__traceback__ is not None and e.__traceback__.tb_next is None
                if not is_of_the_call:
                    raise
                raise TypeError(_call_error(called_name, parameters, len(values), named, e)) from None

        return checked

    return decorate


_MEANT = {
    "bootstrap_servers": ("bootstrap_server", "bootstrap", "servers", "server", "brokers", "broker", "kafka_bootstrap_servers"),
    "topic": ("topics", "topic_name", "subscribe", "name"),
    "name": ("topic", "topic_name"),
    "query": ("sql", "statement", "q"),
    "data": ("df", "rows", "table", "batch", "value", "records", "messages"),
    "listen": ("port", "host", "address", "bootstrap_servers", "bootstrap_server"),
    "brokers": ("n_brokers", "num_brokers", "nodes", "n"),
    "data_dir": ("directory", "dir", "path", "log_dir", "log_dirs"),
    "settings": ("config", "configs", "properties", "options"),
    "configs": ("config", "settings", "properties", "topic_config", "topic_configs"),
    "partitions": ("num_partitions", "n_partitions", "numPartitions"),
    "start": ("startingOffsets", "starting_offsets", "since", "begin", "from_", "offset", "offsets", "partition", "startingTimestamp"),
    "end": ("endingOffsets", "ending_offsets", "until", "to"),
    "limit": ("n", "max_records", "num_rows", "count", "nrows"),
    "filter": ("where", "filters", "predicate"),
    "timeout_ms": ("timeout", "timeout_s"),
    "timeout_s": ("timeout", "timeout_ms"),
    "request_timeout_ms": ("timeout", "timeout_ms", "timeout_s"),
    "timestamp_ms": ("timestamp",),
    "include_metadata": ("includeMetadata", "metadata"),
    "security": ("security_protocol", "properties", "config"),
}  # fmt: skip
"""Names that other libraries have for an argument, by the argument."""


def _call_error(
    called: str, parameters: Mapping[str, inspect.Parameter], count: int, named: Mapping[str, object], error: TypeError
) -> str:
    """Return the text for a call that does not fit the function's parameters: the wrong argument, and the right one."""
    names = [n for n in parameters if n != "self"]
    by_position = [n for n in names if parameters[n].kind in (_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)]
    by_name = [n for n in names if n not in by_position]
    takes_any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    unknown = None if takes_any_name else next((n for n in named if n not in parameters), None)
    if unknown is not None:
        meant = next((n for n in names if unknown in _MEANT.get(n, ())), None)
        meant = meant or next(iter(difflib.get_close_matches(unknown, names, 1)), None)
        hint = f"did you mean {meant!r}?" if meant else f"its arguments are {', '.join(names)}"
        return f"{called}() has no argument {unknown!r}: {hint}"
    if count > len(by_position) + ("self" in parameters):
        others = f"; name the others: {', '.join(f'{n}=…' for n in by_name)}" if by_name else ""
        return f"{called}() takes {len(by_position)} arguments by position ({', '.join(by_position)}){others}"
    said = str(error).partition("() ")[2] or str(error)
    if "bootstrap_servers" in named and "multiple values" in said and not {"topic", "query"} & set(names):
        return (
            f"{called}() takes the addresses of brokers, and nothing else, by position: topics are named later, as in "
            "consumer.subscribe([topic]) and producer.send(topic, …)"
        )
    return f"{called}() {said}; call it as {called}({', '.join(by_position)}), or name the arguments"


def servers_may_follow(needed: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that lets a call leave out `bootstrap_servers`, the first parameter of the function, or give
    it by name after the others. `needed`: the second parameter, which every call gives."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            if args and "bootstrap_servers" in kwargs:
                args = (kwargs.pop("bootstrap_servers"), *args)  # type: ignore[assignment]
            elif not args and needed in kwargs:
                kwargs.setdefault("bootstrap_servers", None)
            elif len(args) == 1 and needed not in kwargs:
                args = (None, *args)  # type: ignore[assignment]
            return function(*args, **kwargs)

        return called

    return decorate


def behind_servers(order: str) -> Reader:
    """Return a reader of the text argument after `bootstrap_servers`. It refuses the address of a broker with a remark
    about the order of arguments, which is `order`."""

    def read(argument: str, value: object) -> str:
        servers = text(argument, value)
        if _ADDRESSES.fullmatch(servers):
            refuse(argument, value, f"this is the address of a broker; the order is {order}")
        return servers

    return read
