"""Random requests to the schema registry: ids are never issued again, and a replay gives the same state."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sparklog.gateway.schemas.operations import Request, delete_subject, delete_version, register
from sparklog.gateway.schemas.parsed_schemas import ParsedSchemas
from sparklog.gateway.schemas.settings_operations import set_level, set_mode
from sparklog.gateway.schemas.state import Record, RegistryState
from sparklog.kafka.schemas.errors import RegistryError

SUBJECTS = st.sampled_from(["a", "b"])
TEXTS = st.sampled_from(['"int"', '"long"', '"string"', '{"type":"array","items":"int"}'])


class RegistryMachine(RuleBasedStateMachine):
    """A registry, and a model of its ids and versions."""

    def __init__(self) -> None:
        super().__init__()
        self.state = RegistryState()
        self.schemas = ParsedSchemas()
        self.newest: dict[bytes, bytes | None] = {}
        self.texts: dict[int, str] = {}
        """The text of each id that was ever issued."""

    def apply(self, records: list[Record]) -> None:
        self.newest |= dict(records)
        self.state = self.state.replay(records, self.state.offset + len(records))

    @rule(subject=SUBJECTS, text=TEXTS, schema_id=st.none() | st.integers(1, 6))
    def register(self, subject: str, text: str, schema_id: int | None) -> None:
        before, highest = self.state, max(self.state.subjects.get(subject, {}), default=0)
        body = {"schema": text} if schema_id is None else {"schema": text, "id": schema_id}
        try:
            answer, records, *_ = register(self.state, self.schemas, Request(subject, body=body))
        except RegistryError as e:
            assert e.code in (409, 42205, 42207)
            return
        self.apply(records)
        issued = answer["id"]
        assert self.texts.setdefault(issued, text) == text or schema_id is not None
        if schema_id is None and issued not in before.schemas:
            assert issued == before.next_id, "an id was issued that may have been issued before"
        if records:
            assert answer["version"] == highest + 1
        again = register(self.state, self.schemas, Request(subject, body={"schema": text}))
        assert again.body["id"] == issued and not again.records, "the same schema has the same id"

    @rule(subject=SUBJECTS, number=st.sampled_from(["1", "2", "latest", ""]), permanent=st.booleans())
    def delete(self, subject: str, number: str, permanent: bool) -> None:
        request = Request(subject, number, query={"permanent": str(permanent)})
        try:
            _, records, *_ = (delete_version if number else delete_subject)(self.state, self.schemas, request)
        except RegistryError as e:
            assert e.status in (404, 422)
            return
        self.apply(records)

    @rule(subject=SUBJECTS, mode=st.sampled_from(["IMPORT", "READWRITE", "READONLY"]))
    def set_mode(self, subject: str, mode: str) -> None:
        request = Request(subject, body={"mode": mode}, query={"force": "true"})
        self.apply(set_mode(self.state, self.schemas, request).records)

    @rule(level=st.sampled_from(["NONE", "BACKWARD", "FULL_TRANSITIVE"]))
    def set_level(self, level: str) -> None:
        self.apply(set_level(self.state, self.schemas, Request(body={"compatibility": level})).records)

    @invariant()
    def a_replay_gives_the_same_state(self) -> None:
        assert RegistryState().replay(self.newest.items(), self.state.offset) == self.state

    @invariant()
    def ids_are_below_the_next_one(self) -> None:
        assert all(schema_id < self.state.next_id for schema_id in self.state.schemas)
        used = {version.schema_id for one in self.state.subjects.values() for version in one.values()}
        assert used == set(self.state.schemas)


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
