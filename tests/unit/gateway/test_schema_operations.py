"""The registry's answers, as functions of its state: statuses and codes of Confluent's registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import RFC_4122, UUID

import pytest

from sparklog.gateway.schemas import operations
from sparklog.gateway.schemas.operations import with_verdict
from sparklog.gateway.schemas.own_registry import newest_id, served_id
from sparklog.gateway.schemas.parsed_schemas import ParsedSchemas
from sparklog.gateway.schemas.routes import find_route
from sparklog.gateway.schemas.state import RegistryState
from sparklog.kafka.schemas.errors import RegistryError
from sparklog.kafka.values.schemas import topic_of
from sparklog.version import __version__
from tests.support.cases import for_each

A = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})
B = json.dumps(json.loads(A) | {"fields": [*json.loads(A)["fields"], {"name": "b", "type": "int", "default": 1}]})
C = json.dumps(json.loads(A) | {"fields": [*json.loads(A)["fields"], {"name": "c", "type": "int"}]})


class Registry:
    """A registry whose log is a list."""

    def __init__(self) -> None:
        self.state = RegistryState()
        self.schemas = ParsedSchemas()
        self.log: list[tuple[bytes, bytes | None]] = []

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """Answer a request, and apply its records."""
        path, _, query = path.partition("?")
        route, request = find_route(method, path)
        parameters = dict(part.split("=") for part in query.split("&") if part)
        request = request._replace(query=parameters, body=body or {}, **more)
        outcome = route.run(self.state, self.schemas, request)
        self.log += outcome.records
        self.state = self.state.replay(outcome.records, len(self.log))
        return outcome.body

    def register(self, subject: str, text: str, **more: Any) -> int:
        schema_id: int = self.ask("POST", f"/subjects/{subject}/versions", {"schema": text, **more})["id"]
        return schema_id

    def code(self, method: str, path: str, body: Mapping[str, Any] | None = None, **more: Any) -> int:
        """The error code of a request that is refused."""
        with pytest.raises(RegistryError) as caught:
            self.ask(method, path, body, **more)
        return caught.value.code

    def compacted(self) -> RegistryState:
        """The state after a replay of the newest record of each key."""
        newest = dict(self.log)
        return RegistryState().replay(newest.items(), len(self.log))


def test_a_schema_has_one_id_in_all_subjects_and_a_version_in_each() -> None:
    registry = Registry()
    assert [registry.register("a", A), registry.register("a", B), registry.register("b", A)] == [1, 2, 1]
    assert registry.register("a", json.dumps(json.loads(A), indent=2)) == 1, "white space makes no other schema"
    assert registry.ask("GET", "/subjects") == ["a", "b"]
    assert registry.ask("GET", "/subjects/a/versions") == [1, 2]
    assert registry.ask("GET", "/subjects/a/versions/latest")["id"] == 2
    assert registry.ask("GET", "/schemas/ids/1")["schema"] == json.dumps(json.loads(A), separators=(",", ":"))
    assert registry.ask("GET", "/schemas/ids/1/versions") == [
        {"subject": "a", "version": 1},
        {"subject": "b", "version": 1},
    ]
    assert registry.ask("POST", "/subjects/a", {"schema": B})["version"] == 2
    assert registry.compacted() == registry.state


def test_both_texts_of_a_primitive_type_have_one_id() -> None:
    registry = Registry()
    for java, python in (
        ('"long"', '{"type": "long"}'),
        ('["null","string"]', '["null", {"type": {"type": "string"}}]'),
        ('{"type":"map","values":"int"}', '{"type": "map", "values": {"type": "int"}}'),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"map","values":"string"},'
            '"default":{"type":"x"}}]}',
            '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"map","values":{"type":"string"}},'
            '"default":{"type":"x"}}]}',
        ),
    ):
        registry.ask("PUT", "/config", {"compatibility": "NONE"})
        schema_id = registry.register("a", python)
        assert registry.register("a", java) == schema_id
        assert registry.ask("GET", f"/schemas/ids/{schema_id}")["schema"] == java


def test_a_schema_has_one_guid_in_all_registries_and_is_answered_by_it() -> None:
    one, other = Registry(), Registry()
    other.register("z", B)
    assert (one.register("a", A), other.register("b", A)) == (1, 2)
    guid = one.ask("GET", "/schemas/ids/1")["guid"]
    assert UUID(guid).version == 8 and UUID(guid).variant == RFC_4122
    for registry, schema_id in ((one, 1), (other, 2)):
        found = registry.ask("GET", f"/schemas/guids/{guid}")
        assert (found["id"], found["guid"], found["schema"]) == (
            schema_id,
            guid,
            json.dumps(json.loads(A), separators=(",", ":")),
        )
        assert registry.ask("GET", f"/schemas/guids/{guid}/ids") == [{"context": ".", "id": schema_id}]
        assert registry.state.guids == registry.compacted().guids
    assert one.ask("POST", "/subjects/a/versions", {"schema": A})["guid"] == guid
    assert one.ask("GET", "/subjects/a/versions/1")["guid"] == guid
    assert one.code("GET", f"/schemas/guids/{UUID(int=5)}") == 40403
    assert one.code("GET", f"/schemas/guids/{guid}", visible={"b"}) == 40403, "the subject is not visible"
    assert one.code("GET", "/schemas/guids/5") == 404
    for query in ("", "?permanent=true"):
        one.ask("DELETE", f"/subjects/a{query}")
    assert one.code("GET", f"/schemas/guids/{guid}") == 40403


def test_normalized_schemas_of_one_meaning_have_one_id() -> None:
    registry = Registry()
    other = json.dumps({"fields": [{"type": {"type": "int"}, "name": "a"}], "name": "R", "type": "record"})
    assert registry.ask("POST", "/subjects/a/versions?normalize=true", {"schema": A})["id"] == 1
    assert registry.ask("POST", "/subjects/a/versions?normalize=true", {"schema": other})["id"] == 1


def test_an_incompatible_version_is_refused_by_the_level() -> None:
    registry = Registry()
    registry.register("a", A)
    assert registry.code("POST", "/subjects/a/versions", {"schema": C}) == 409
    check = registry.ask("POST", "/compatibility/subjects/a/versions/latest?verbose=true", {"schema": C})
    assert not check["is_compatible"] and "READER_FIELD_MISSING_DEFAULT_VALUE" in check["messages"][0]
    assert registry.ask("PUT", "/config/a", {"compatibility": "forward"}) == {"compatibility": "FORWARD"}
    assert registry.ask("POST", "/compatibility/subjects/a/versions/1", {"schema": C}) == {"is_compatible": True}
    assert registry.register("a", C) == 2
    assert registry.ask("DELETE", "/config/a") == {"compatibilityLevel": "FORWARD"}
    assert registry.code("GET", "/config/a") == 40408
    assert registry.ask("GET", "/config/a?defaultToGlobal=true") == {"compatibilityLevel": "BACKWARD"}
    assert registry.ask("PUT", "/config", {"compatibility": "NONE"}) == {"compatibility": "NONE"}
    assert registry.register("a", '"int"') == 3
    assert registry.compacted() == registry.state


def test_a_check_has_the_fields_that_the_client_asks_for() -> None:
    registry = Registry()
    registry.register("a", A)
    registry.register("a", B)
    path = "/compatibility/subjects/a/versions"
    assert registry.ask("POST", path, {"schema": B}) == {"is_compatible": True}
    answer = {"is_compatible": True, "messages": [], "effects": []}
    assert registry.ask("POST", f"{path}?verbose=true&effects=true", {"schema": B}) == answer
    assert with_verdict(answer, [], ["x"]) == answer | {"effects": ["x"]}
    assert with_verdict(answer, ["r"], ["x"]) == answer | {"is_compatible": False, "messages": ["r"]}
    registry.ask("DELETE", "/subjects/a/versions/1")
    assert registry.code("POST", f"{path}/1", {"schema": B}) == 40402
    assert registry.ask("POST", f"{path}/1?deleted=true", {"schema": B}) == {"is_compatible": True}


def test_consumers_get_the_last_version_of_a_subject_that_is_deleted_softly() -> None:
    registry = Registry()
    first, second = registry.register("a", A), registry.register("a", B)
    assert served_id(registry.state, "a") == second
    registry.ask("DELETE", "/subjects/a/versions/2")
    assert served_id(registry.state, "a") == first
    registry.ask("DELETE", "/subjects/a")
    assert (served_id(registry.state, "a"), newest_id(registry.state, "a")) == (second, None)
    registry.ask("DELETE", "/subjects/a?permanent=true")
    assert served_id(registry.state, "a") is None


def test_ids_are_not_issued_again_after_deletion_and_compaction() -> None:
    registry = Registry()
    registry.register("a", A)
    assert registry.ask("DELETE", "/subjects/a") == [1]
    assert registry.ask("GET", "/subjects") == []
    assert registry.ask("GET", "/schemas/ids/1")["schema"], "softly deleted schemas are readable by their ids"
    assert registry.ask("DELETE", "/subjects/a?permanent=true") == [1]
    assert registry.code("GET", "/schemas/ids/1") == 40403
    registry.state = registry.compacted()
    assert registry.register("a", A) == 2


def test_deletions_are_soft_first() -> None:
    registry = Registry()
    assert registry.code("DELETE", "/subjects/a") == 40401
    registry.register("a", A)
    registry.register("a", B)
    assert registry.code("DELETE", "/subjects/a?permanent=true") == 40405
    assert registry.code("DELETE", "/subjects/a/versions/1?permanent=true") == 40407
    assert registry.ask("DELETE", "/subjects/a/versions/1") == 1
    assert registry.code("DELETE", "/subjects/a/versions/1") == 40406
    assert registry.code("GET", "/subjects/a/versions/1") == 40402
    assert registry.ask("GET", "/subjects/a/versions/1?deleted=true")["id"] == 1
    assert registry.ask("GET", "/subjects/a/versions?deleted=true") == [1, 2]
    assert registry.ask("DELETE", "/subjects/a/versions/latest") == 2
    assert registry.code("DELETE", "/subjects/a") == 40404
    assert registry.register("a", A) == 1, "a schema that is registered again keeps its id"
    assert registry.ask("GET", "/subjects/a/versions") == [3]
    assert registry.ask("DELETE", "/subjects/a/versions/1?permanent=true") == 1
    assert registry.ask("GET", "/schemas/ids/1")["schema"], "version 3 has the schema, too"


def test_referenced_versions_are_not_deleted() -> None:
    registry = Registry()
    registry.register("r", A)
    user = json.dumps({"type": "array", "items": "R"})
    references = [{"name": "R", "subject": "r", "version": 1}]
    schema_id = registry.register("u", user, references=references)
    assert registry.ask("GET", f"/schemas/ids/{schema_id}")["references"] == references
    assert registry.ask("GET", "/subjects/r/versions/1/referencedby") == [schema_id]
    assert registry.code("DELETE", "/subjects/r") == 42206
    assert registry.code("POST", "/subjects/u/versions", {"schema": user}) == 42201, "the reference is missing"
    registry.ask("DELETE", "/subjects/u")
    registry.ask("DELETE", "/subjects/r")
    assert registry.code("DELETE", "/subjects/r?permanent=true") == 42206, "the user can still be read"
    assert registry.code("POST", "/subjects/u/versions", {"schema": user, "references": [{"name": "R"}]}) == 42201
    assert registry.compacted() == registry.state


def test_modes_decide_about_changes_and_ids() -> None:
    registry = Registry()
    assert registry.code("POST", "/subjects/a/versions", {"schema": A, "id": 7}) == 42205
    assert registry.ask("PUT", "/mode/a", {"mode": "IMPORT"}) == {"mode": "IMPORT"}
    assert registry.code("POST", "/subjects/a/versions", {"schema": A}) == 42205
    assert registry.register("a", A, id=7, version=3) == 7
    assert registry.ask("GET", "/subjects/a/versions") == [3]
    assert registry.code("POST", "/subjects/a/versions", {"schema": B, "id": 7, "version": 4}) == 42205
    assert registry.code("POST", "/subjects/a/versions", {"schema": A, "id": 8, "version": 4}) == 42207
    assert registry.register("a", C, id=9, version=1) == 9
    assert registry.ask("GET", "/subjects/a/versions") == [1, 3], "imported versions are in their order"
    assert registry.ask("DELETE", "/mode/a") == {"mode": "IMPORT"}
    assert registry.register("b", B) == 10, "ids go on behind the largest imported one"
    assert registry.code("PUT", "/mode/a", {"mode": "IMPORT"}) == 42205
    registry.ask("PUT", "/mode", {"mode": "READONLY"})
    assert registry.code("POST", "/subjects/a/versions", {"schema": '"int"'}) == 42205
    assert registry.code("DELETE", "/subjects/a") == 42205
    assert registry.register("b", B) == 10, "the schema is registered already"
    assert registry.compacted() == registry.state


LISTS = [
    ("/subjects", ["a", "ab", "b"]),
    ("/subjects?subjectPrefix=a", ["a", "ab"]),
    ("/subjects?subjectPrefix=:*:", ["a", "ab", "b"]),
    ("/subjects?subjectPrefix=:.:b", ["b"]),
    ("/subjects?deleted=true", ["a", "ab", "b", "c"]),
    ("/subjects?deletedOnly=true", ["c"]),
    ("/subjects?offset=1&limit=1", ["ab"]),
    ("/subjects?limit=0", []),
    ("/subjects?offset=9", []),
    ("/subjects/a/versions", [1, 3]),
    ("/subjects/a/versions?deleted=true", [1, 2, 3]),
    ("/subjects/a/versions?deletedOnly=true", [2]),
    ("/subjects/a/versions?limit=1", [1]),
    ("/subjects/:.:a/versions", [1, 3]),
    ("/schemas", [("a", 1), ("a", 3), ("ab", 1), ("b", 1)]),
    ("/schemas?latestOnly=true", [("a", 3), ("ab", 1), ("b", 1)]),
    ("/schemas?subjectPrefix=a&latestOnly=true", [("a", 3), ("ab", 1)]),
    ("/schemas?deleted=true&offset=1&limit=2", [("a", 2), ("a", 3)]),
    ("/schemas?deletedOnly=true", [("a", 2), ("c", 1)]),
    ("/schemas/ids/1/subjects", ["a", "ab", "b"]),
    ("/schemas/ids/1/subjects?deleted=true", ["a", "ab", "b", "c"]),
    ("/schemas/ids/1/subjects?offset=1&limit=1", ["ab"]),
    ("/schemas/ids/1/versions?limit=1", [("a", 1)]),
]


@for_each("path, expected", LISTS)
def test_lists_have_confluents_parameters(path: str, expected: list[Any]) -> None:
    registry = Registry()
    for subject, text in (("a", A), ("a", B), ("a", '"int"'), ("ab", A), ("b", A), ("c", A)):
        registry.ask("PUT", f"/config/{subject}", {"compatibility": "NONE"})
        registry.register(subject, text)
    registry.ask("DELETE", "/subjects/a/versions/2")
    registry.ask("DELETE", "/subjects/c")
    found = registry.ask("GET", path)
    assert [(one["subject"], one["version"]) if isinstance(one, dict) else one for one in found] == expected


def test_a_list_of_schemas_has_texts_and_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    schema_id = registry.register("a", A)
    schema = registry.ask("GET", f"/schemas/ids/{schema_id}")
    assert schema["schema"] == registry.ask("GET", f"/schemas/ids/{schema_id}/schema")
    assert registry.ask("GET", "/schemas") == [{"subject": "a", "version": 1, "id": schema_id, **schema}]
    assert registry.ask("GET", "/schemas", visible=set()) == []
    assert registry.ask("GET", f"/schemas/ids/{schema_id}?fetchMaxId=true") == {**schema, "maxId": 1}
    monkeypatch.setattr(operations, "LIST_BYTES_MAX", 100)
    assert registry.code("GET", "/schemas") == 42205
    assert registry.ask("GET", "/schemas?limit=0") == []


def test_the_cluster_and_the_release_have_names() -> None:
    answer = Registry().ask("GET", "/v1/metadata/id", cluster_id="c1")
    assert answer == {
        "id": "",
        "scope": {"path": [], "clusters": {"kafka-cluster": "c1", "schema-registry-cluster": "schema-registry"}},
    }
    assert Registry().ask("GET", "/v1/metadata/version")["version"] == __version__


REFUSALS = [
    ("GET", "/exporters", None, 404),
    ("GET", "/subjects/x/versions?deletedOnly=true", None, 40401),
    ("GET", "/subjects/a/versions", None, 40401),
    ("GET", "/subjects/x/versions/9", None, 40402),
    ("GET", "/subjects/x/versions/0", None, 42202),
    ("GET", "/subjects/x/versions/none", None, 42202),
    ("GET", "/schemas/ids/99", None, 40403),
    ("GET", "/schemas/ids/none", None, 404),
    ("GET", "/nowhere", None, 404),
    ("PATCH", "/subjects", None, 405),
    ("POST", "/subjects/x", {"schema": B}, 40403),
    ("POST", "/subjects/a", {"schema": B}, 40401),
    ("POST", "/subjects/x/versions", {}, 42201),
    ("POST", "/subjects/x/versions", {"schema": ""}, 42201),
    ("POST", "/subjects/x/versions", {"schema": 5}, 42201),
    ("POST", "/subjects/x/versions", {"schema": A, "schemaType": "XML"}, 42201),
    ("POST", "/subjects/x/versions", {"schema": A, "references": [{"name": "R", "subject": "s", "version": 1}]}, 42201),
    ("POST", "/subjects/x/versions", {"schema": A, "ruleSet": {"domainRules": []}}, 42201),
    ("POST", "/subjects/x/versions", {"schema": A + " " * 600_000}, 42201),
    ("POST", "/subjects/%00/versions", {"schema": A}, 42208),
    ("POST", "/compatibility/subjects/a/versions/1", {"schema": A}, 40401),
    ("PUT", "/config", {"compatibility": "SOMETIMES"}, 42203),
    ("PUT", "/config", {"compatibility": "NONE", "alias": "b"}, 42203),
    ("PUT", "/mode", {"mode": "SLOW"}, 42204),
    ("GET", "/mode/a", None, 40409),
    ("GET", "/subjects?offset=x", None, 400),
]


@for_each("method, path, body, code", REFUSALS)
def test_refusals_have_confluents_codes(method: str, path: str, body: Any, code: int) -> None:
    registry = Registry()
    registry.register("x", A)
    assert registry.code(method, path, body) == code


def test_limits_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    registry.register("a", A)
    for name, subject in (("SUBJECTS_MAX", "b"), ("VERSIONS_MAX", "a"), ("SUBJECT_BYTES_MAX", "a")):
        with monkeypatch.context() as patch:
            patch.setattr(operations, name, 1)
            assert registry.code("POST", f"/subjects/{subject}/versions", {"schema": B}) == 42205, name


def test_a_schema_is_visible_through_subjects_that_can_be_described() -> None:
    registry = Registry()
    registry.register("a", A)
    registry.register("b", A)
    assert registry.ask("GET", "/subjects", visible={"b"}) == ["b"]
    assert registry.ask("GET", "/schemas/ids/1/subjects", visible={"b"}) == ["b"]
    assert registry.code("GET", "/schemas/ids/1", visible=set()) == 40403


def test_records_keep_their_form_and_later_versions_are_refused() -> None:
    registry = Registry()
    registry.register("a", '"int"')
    assert [(key.hex(), (value or b"").hex()) for key, value in registry.log] == [
        ("9200a46e657874", "02"),
        ("9300a6736368656d6101", "94a44156524fa522696e742290c400"),
        ("9400a776657273696f6ea16101", "9201c2"),
    ]
    with pytest.raises(RegistryError, match="a record of a later version"):
        registry.state.replay([(bytes.fromhex("9201a46e657874"), b"\x05")], 9)


def test_subjects_belong_to_topics() -> None:
    names = ["orders-value", "orders-key", "orders", "com.example.Order", "-value"]
    assert [topic_of(name) for name in names] == ["orders", "orders", "orders", "com.example.Order", "-value"]
