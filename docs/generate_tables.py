"""Writes the tables of the documents that have a source in the code: settings, options, errors, permissions.

    python docs/generate_tables.py [--check]

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from pyspark_sparklog.options.kafka_settings import markdown_table as kafka_table
from pyspark_sparklog.options.option_table import OPTIONS, PRODUCER_OPTIONS, Option, OptionUse

from sparklog.cli.conf import markdown_table
from sparklog.cli.errors import HINTS
from sparklog.errors import NAMES, SparklogError
from sparklog.gateway.registry import served_apis
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.permission_rules import Denial, Rule
from sparklog.settings import Scope

DOCS = Path(__file__).resolve().parent
GUIDE = DOCS / "guide.md"
WITH_TABLES = (
    GUIDE,
    DOCS / "moving-from-kafka.md",
    DOCS / "kafka-apis.md",
    DOCS / "security.md",
    DOCS / "internals" / "security.md",
)
_TABLE = re.compile(r"(<!-- table: ([a-z -]+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def tables() -> dict[str, str]:
    """Every generated table by its name in the documents."""
    made = {f"{scope.value} settings": markdown_table(scope) for scope in Scope}
    made["source options"] = _options([o for o in (*OPTIONS, *PRODUCER_OPTIONS) if o.where & OptionUse.SOURCE])
    made["sink options"] = _options([o for o in (*OPTIONS, *PRODUCER_OPTIONS) if o.where & OptionUse.SINK])
    made["kafka settings"] = kafka_table().rstrip()
    made["kafka apis"] = _kafka_apis()
    made["errors"] = _errors()
    made["permissions"] = _permissions()
    return made


def regenerate(text: str) -> str:
    """A document's text with every table made anew. Raises KeyError for a table nobody makes."""
    made = tables()
    return _TABLE.sub(lambda m: f"{m[1]}{made[m[2]]}\n{m[4]}", text)


def _options(options: list[Option]) -> str:
    rows = [
        f"| `{o.name}` | {_cell(o.type_name)} | {_cell(o.default)} | {_where(o.where)} | {_cell(o.doc)} |"
        for o in options
    ]
    return "\n".join(["| option | value | default | for | meaning |", "|---|---|---|---|---|", *rows])


def _kafka_apis() -> str:
    served = sorted(served_apis().values(), key=lambda s: s.api.key)
    rows = [f"| {s.api.key} | {s.api.name} | {s.api.first} to {s.api.last} |" for s in served]
    return "\n".join(["| key | API | versions |", "|---|---|---|", *rows])


def _where(where: OptionUse) -> str:
    names = {OptionUse.STREAM: "stream", OptionUse.BATCH: "batch", OptionUse.SINK: "sink"}
    return ", ".join(name for flag, name in names.items() if where & flag)


def _first_sentence(text: str) -> str:
    joined = " ".join(text.split())
    return joined.partition(". ")[0].rstrip(".") + "."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _errors() -> str:
    by_code: dict[int, type[SparklogError]] = {cls.code: cls for cls in HINTS}
    rows = [
        f"| `{NAMES[code]}` | {_cell(_first_sentence(cls.__doc__ or ''))} | {_cell(HINTS[cls])} |"
        for code, cls in sorted(by_code.items())
    ]
    return "\n".join(["| error | what it says | what to do |", "|---|---|---|", *rows])


def _permissions() -> str:
    rows = []
    for api in Api:
        spec = APIS[api]
        needs = "; ".join(_need(rule) for rule in spec.permissions) or "nothing"
        left_out = "" if spec.filter is None else spec.filter.doc
        rows.append(f"| `{api.name}` | {_cell(needs)} | {_cell(left_out)} |")
    return "\n".join(["| API | needs | leaves out of the answer |", "|---|---|---|", *rows])


def _need(rule: Rule) -> str:
    need = f"{rule.operation} on {rule.resource_type}"
    if rule.or_else is not None:
        need += f" or {rule.or_else[0]} on {rule.or_else[1]}"
    notes = [note for note in (rule.when, "per item" if rule.denial is Denial.ITEM else "") if note]
    return need + (f" ({', '.join(notes)})" if notes else "")


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the generated tables of the documents anew.")
    parser.add_argument("--check", action="store_true", help="only say whether they are up to date (exit status 1: no)")
    arguments = parser.parse_args()
    old = {path: path.read_text(encoding="utf-8") for path in WITH_TABLES}
    new = {path: regenerate(text) for path, text in old.items()}
    if arguments.check:
        print("the tables are up to date" if old == new else "the tables are old: make conf")
        return int(old != new)
    for path, text in new.items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote the tables of {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
