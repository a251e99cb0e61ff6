"""Public docstrings have sections that the reference on the site shows as tables: arguments, results and errors."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

import sparklog
from sparklog import errors
from tests.unit.language_counter import OPENINGS

OTHERS = {
    "sparklog.client.admin.admin": ["PartitionDescription"],
    "sparklog.client.admin.cluster_admin": [
        "BrokerDescription",
        "ClusterDescription",
        "LogDirDescription",
        "PartitionReassignment",
    ],
    "sparklog.client.admin.group_admin": ["GroupDescription", "GroupListing", "MemberDescription", "PartitionLag"],
    "sparklog.client.admin.log_view": ["BatchDescription", "SegmentDescription"],
    "sparklog.client.admin.quota_admin": ["QuotaDescription"],
    "sparklog.client.admin.transaction_admin": ["HangingTransaction"],
    "sparklog.client.admin.user_admin": ["UserDescription"],
    "sparklog.client.local_cluster": ["ClusterBroker", "start_cluster"],
    "sparklog.client.local_zookeeper": ["ZooKeeperProcess"],
    "sparklog.client.producer.futures": ["BatchFuture", "BatchMetadata", "RecordFuture"],
    "sparklog.errors": [name for name in vars(errors) if name.endswith("Error")],
    "sparklog.protocol.quota_messages": ["ThrottledGroup"],
    "sparklog.protocol.transaction_messages": [
        "DescribeProducersResponse",
        "ProducerState",
        "TransactionDetails",
        "TransactionPartition",
        "TransactionSummary",
    ],
    "sparklog.query.result": ["QueryResult"],
    "sparklog.query.scan": ["ScanStatistics"],
    "sparklog.security.acl_records": ["AclFilter"],
    "sparklog.security.acls": ["Acl"],
    "sparklog.security.quotas": ["Entity"],
    "sparklog.serialization": [
        "Deserializer",
        "JsonDeserializer",
        "JsonSerializer",
        "Serializer",
        "StringDeserializer",
        "StringSerializer",
    ],
    "sparklog.settings": ["Scope", "Setting", "check", "check_names", "from_parameters", "resolve", "settings_of"],
    "sparklog.types": ["check_topic_name", "shared_transactional_id"],
    "pyspark_sparklog": ["DefaultSource"],
    "pyspark_sparklog.delta": ["latest_changes", "once"],
    "pyspark_sparklog.lag": ["offsets_behind_latest"],
}
"""Public names beside `sparklog.__all__`: results and arguments of its names, and modules that users import."""

SECTIONS = ("Args", "Returns", "Yields", "Raises", "Example")
_SECTION = re.compile(rf"^({'|'.join(SECTIONS)}):\n((?:(?:    .*)?\n?)*)", re.MULTILINE)
_ENTRY = re.compile(r"^([*\w.]+): \S", re.MULTILINE)
_RAISES_IN_PROSE = re.compile(r"\bRaises? [A-Z]\w*(Error|Exception)\b")


class Documented(NamedTuple):
    """A public function, property or class."""

    name: str
    value: Any


@functools.cache
def public() -> list[Documented]:
    named = [Documented(name, getattr(sparklog, name)) for name in sparklog.__all__]
    named += [Documented(n, getattr(importlib.import_module(m), n)) for m, names in OTHERS.items() for n in names]
    return named + [member for n, value in named if inspect.isclass(value) for member in members(n, value)]


def members(name: str, cls: type) -> Iterator[Documented]:
    """The public functions and properties of a class and of its bases in the product, and its constructor."""
    for owner in cls.__mro__:
        if owner.__module__.partition(".")[0] not in ("sparklog", "pyspark_sparklog"):
            continue
        for attribute, value in vars(owner).items():
            value = getattr(value, "__func__", value)
            is_code = inspect.isfunction(value) or isinstance(value, property)
            is_record = hasattr(cls, "_fields") or hasattr(cls, "__dataclass_fields__") or hasattr(cls, "_is_protocol")
            is_public = not attribute.startswith("_") or (attribute == "__init__" and not is_record)
            if is_code and is_public and attribute in vars(cls).keys() | vars(owner).keys():
                yield Documented(f"{name}.{attribute}", value)


def functions() -> list[Documented]:
    return [d for d in public() if inspect.isfunction(d.value)]


def sections(text: str) -> dict[str, str]:
    return {match[1]: textwrap.dedent(match[2]) for match in _SECTION.finditer(text + "\n")}


def is_without_result(function: Callable[..., object]) -> bool:
    annotation = inspect.signature(function).return_annotation
    return annotation in (None, "None", NoReturn, "NoReturn")


def faults_of(text: str, function: Callable[..., object] | None = None) -> list[str]:
    """The rules that a docstring breaks; the rules of arguments and results only for a function."""
    found = sections(text)
    faults = []
    summary = text.partition("\n\n")[0]
    if not summary or not summary.rstrip().endswith((".", ":")):
        faults.append("no summary")
    if (re.findall(r"\w+", summary.lower()) or [""])[0] in OPENINGS:
        faults.append("the first word is no noun and no verb")
    if _RAISES_IN_PROSE.search(_SECTION.sub("", text + "\n")) and "Raises" not in found:
        faults.append("an error outside of Raises")
    for error in _ENTRY.findall(found.get("Raises", "")):
        if "." not in error and not hasattr(errors, error) and not hasattr(builtins, error):
            faults.append(f"Raises names {error}")
    if function is None:
        return faults
    named = _ENTRY.findall(found.get("Args", ""))
    parameters = inspect.signature(function).parameters.values()
    stars: dict[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    wanted = [stars.get(p.kind, "") + p.name for p in parameters if p.name not in ("self", "cls")]
    if named != wanted:
        faults.append(f"Args has {named}, the signature {wanted}")
    has_result = "Returns" in found or "Yields" in found
    is_constructor = function.__name__ == "__init__"
    if has_result is (is_constructor or is_without_result(function)):
        faults.append("a result without Returns" if not has_result else "Returns without a result")
    return faults


def test_every_public_function_has_its_sections() -> None:
    faults = {d.name: found for d in functions() if (found := faults_of(inspect.getdoc(d.value) or "", d.value))}
    assert not faults


def test_every_public_class_and_property_has_a_summary() -> None:
    others = [d for d in public() if not inspect.isfunction(d.value)]
    faults = {d.name: found for d in others if (found := faults_of(inspect.cleandoc(d.value.__doc__ or "")))}
    assert not faults


def test_every_field_of_a_public_record_is_documented_at_the_field() -> None:
    missing = []
    for name, cls in public():
        if not inspect.isclass(cls) or "__annotations__" not in vars(cls):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and not ast.unparse(field.target).startswith("_"):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                if not is_text:
                    missing.append(f"{name}.{ast.unparse(field.target)}")
    assert not missing


def test_the_rules_find_faults() -> None:
    def function(first: int, **others: object) -> int:
        return first

    good = (
        "Add.\n\nArgs:\n    first: A number\n        of things.\n    **others: Rest.\n\nReturns:\n    The sum.\n\n"
        "Raises:\n    InvalidConfigError: Never."
    )
    assert faults_of(good, function) == []
    assert faults_of("What is added.") == ["the first word is no noun and no verb"]
    assert faults_of(good.replace("first:", "second:"), function) == [
        "Args has ['second', '**others'], the signature ['first', '**others']"
    ]
    assert faults_of(good.replace("Returns", "Result"), function) == ["a result without Returns"]
    assert faults_of("Add. Raises InvalidConfigError.") == ["an error outside of Raises"]
    assert faults_of(good.replace("InvalidConfigError", "WrongError")) == ["Raises names WrongError"]
