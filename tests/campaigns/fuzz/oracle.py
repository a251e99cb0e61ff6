"""The judge: is what a target answered what was sent, or refused as it should be?"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import decode_header
from tests.campaigns.fuzz import reference
from tests.campaigns.fuzz.cases import SCHEMAS, Case
from tests.campaigns.fuzz.child import Answer
from tests.campaigns.fuzz.log_targets import Found, Reading, is_sampled
from tests.campaigns.fuzz.planted import HONEST_ROWS, Rows, honest
from tests.campaigns.fuzz.reference import UnreadableError, read_batch
from tests.campaigns.fuzz.whole_batches import HOSTILE_OFFSET

MISSING = object()
_Columns = list[Any]


class Sent:
    """Content of the case's batch, by the reference: one or two readings of each column, or none where it must be
    refused."""

    def __init__(self, data: bytes, schema_id: int) -> None:
        self.found: list[reference.Reading] = []
        self.why = ""
        for by_count in (False, True):
            try:
                self.found.append(read_batch(data, SCHEMAS[schema_id], by_count=by_count))
            except UnreadableError as e:
                self.why = str(e)
        if not self.why:
            wrong = [c for r in self.found for c in r.columns if isinstance(c, UnreadableError)]
            self.why = "" if any(r.is_whole for r in self.found) else str(wrong[0])

    @property
    def must_be_refused(self) -> bool:
        return not any(r.is_whole for r in self.found)

    def differs(self, rows: Rows, columns: tuple[int, ...]) -> str:
        """Return the reason why `rows`, read from the batch, differ from the sent ones; "" if they agree. All rows of a
        batch are expected."""
        why = "there is nothing to be read"
        for reading in self.found:
            wanted = [reading.columns[c] for c in columns]
            bad = next((c for c in wanted if isinstance(c, UnreadableError)), None)
            if bad is not None:
                why = str(bad)
                continue
            expected = dict(zip(reading.offsets, zip(*wanted, strict=True), strict=True))
            if expected == rows:
                return ""
            offset = min(o for o in expected.keys() | rows.keys() if expected.get(o, MISSING) != rows.get(o, MISSING))
            why = f"offset {offset} is {str(rows.get(offset, 'not there'))[:200]}, sent was {str(expected.get(offset, 'nothing'))[:200]}"
        return why


@lru_cache(maxsize=512)
def _sent(data: bytes, schema_id: int) -> Sent:
    return Sent(data, schema_id)


def judge(target: str, case: Case, answer: Answer) -> str:
    """Return the fault of a target's answer; "" if there is none."""
    if not answer.is_as_it_should:
        return f"{answer.kind}: {answer.text}"
    if answer.kind == "typed":
        return f"a typed error ends the whole call: {answer.text}"
    found: Found = answer.value
    data = found.facts.get("stored") or case.stamped()
    sent = _sent(data, case.form.schema_id)
    if target == "append":
        if found.facts["stored"] and sent.must_be_refused:
            # a buffer that is not decompressed at the append is the readers' to refuse
            return "" if sent.why.startswith("a buffer") and is_sampled(data) else f"taken: {sent.why}"
    elif target != "decode":
        problem = _judge_honest(target, case, found, sent)
        if problem:
            return problem
    return next((p for r in found.readings if (p := _judge_reading(r, case, sent, data, target))), "")


def _judge_reading(reading: Reading, case: Case, sent: Sent, data: bytes, target: str) -> str:
    """Check that rows at the hostile batch's offsets are the sent ones, and all others honest ones."""
    mine: Rows = {}
    try:
        header = decode_header(data)
        bounds = range(header.base_offset, header.next_offset)
    except CorruptBatchError:
        bounds = range(0)
    honest_rows = _honest(case, bounds.stop if bounds else None) if target != "append" else {}
    for offset, row in reading.rows.items():
        if offset in bounds:
            mine[offset] = row
        elif tuple(row) != tuple(honest_rows.get(offset, ())[c] for c in reading.columns if offset in honest_rows):
            return f"{reading.way}: offset {offset} is {str(row)[:200]}: nobody has sent that"
    if target == "compaction":  # rows may have given way to later ones of the same key
        whole = [
            dict(zip(r.offsets, zip(*[r.columns[c] for c in reading.columns], strict=True), strict=True))
            for r in sent.found
            if r.is_whole
        ]
        if all(any(w.get(o) == row for w in whole) for o, row in mine.items()):
            return ""
    if mine and (why := sent.differs(mine, reading.columns)):
        return f"{reading.way}, columns {reading.columns}: {why}"
    return ""


def _honest(case: Case, behind: int | None) -> Rows:
    middle_at = HOSTILE_OFFSET + 50 if behind is None else behind
    schema_id = case.form.schema_id
    rows = dict(_rows(schema_id, 0, 0))
    rows |= _rows(schema_id, 1, middle_at) | _rows(schema_id, 2, middle_at + HONEST_ROWS) | _rows(schema_id, 1, 1 << 40)
    # what is appended behind the end after a start
    return rows | _rows(schema_id, 1, middle_at + 2 * HONEST_ROWS)


@lru_cache(maxsize=4096)
def _rows(schema_id: int, number: int, base_offset: int) -> Rows:
    return honest(schema_id, number, base_offset)[1]


def _judge_honest(target: str, case: Case, found: Found, sent: Sent) -> str:
    """Check that honest rows are read despite the bytes between them, and that a tool reports damage."""
    facts = found.facts
    if facts.get("offline"):
        return "" if found.refused else "offline without a reason"
    data = case.stamped()
    try:
        header = decode_header(data)
    except CorruptBatchError:
        return ""
    if header.size_bytes != len(data):
        return ""  # what follows begins in its middle: nobody can tell where
    behind = header.next_offset
    honest_offsets = {*range(HONEST_ROWS), *range(behind, behind + 2 * HONEST_ROWS)}
    for reading in found.readings:
        if reading.way == "tiering, by columns":
            continue  # it ends at the first damage; the broker is asked then
        missing = honest_offsets - reading.rows.keys()
        if missing:
            return f"{reading.way}, columns {reading.columns}: honest rows are not there: {sorted(missing)}; refused: {found.refused}"
    if not sent.must_be_refused:
        return ""
    if target == "dump":
        if facts["code"] == 0:
            return f"dump says that all is well: {sent.why}"
        if any(offset in range(HOSTILE_OFFSET, behind) for offset in facts["offsets"]):
            return f"dump shows rows of a batch that cannot be read: {sent.why}"
    if facts.get("not_looked_at"):
        return ""  # the tools cannot know how much the topic allows, and say so
    if target == "verify" and facts["sound"]:
        return f"verify says that all is well: {sent.why}"
    if target == "repair" and not (facts["repaired"] and facts["sound"] and facts["quarantined"]):
        return f"repair has not put it aside ({facts}): {sent.why}"
    if target == "compaction" and "compaction" in facts and ".arrow" not in facts["compaction"]:
        return f"the error names no file: {facts['compaction']}"
    return ""
