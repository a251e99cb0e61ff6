"""Lists of column names in one text, as options and commands take them: zone, `fare, tip`.

A name stands in backquotes, as in Spark SQL, if it contains a comma, begins or ends with a blank, or begins with a
backquote. Inside the backquotes, a backquote of the name is doubled. Blanks around a name are ignored, and so are empty
names between commas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sparklog.errors import InvalidConfigError

_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`,\s][^,]*)|)\s*(?:,|\Z)")


def column_names(text: str, option: str = "columns") -> list[str]:
    """Return the names in a text, in the text's order. `option`: the name of the option, for the error message. Raises
    InvalidConfigError for a missing backquote or comma."""
    names: list[str] = []
    position = 0
    while position < len(text):
        match = _NAME.match(text, position)
        if match is None:
            raise InvalidConfigError(
                f"{option} = {text!r}: the name at character {position + 1} has no closing backquote, or no comma "
                "behind it; write `a,b` for a column with a comma, and `` for a backquote"
            )
        quoted, plain = match.groups()
        if quoted is not None:
            names.append(quoted.replace("``", "`"))
        elif plain is not None:
            names.append(plain.rstrip())
        position = match.end()
    return names


def column_list(names: Iterable[str]) -> str:
    """Return the text that `column_names` reads as these names."""
    return ",".join(map(_written, names))


def shown_names(names: Iterable[str]) -> str:
    """Return the names for an error message."""
    return ", ".join(map(_written, names))


def _written(name: str) -> str:
    is_plain = name and name == name.strip() and "," not in name and not name.startswith("`")
    return name if is_plain else "`" + name.replace("`", "``") + "`"
