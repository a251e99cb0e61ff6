r"""Regular expressions of subscriptions, in the syntax of RE2, which Kafka's coordinator uses, too (KIP-848).

RE2 takes time in proportion to the names, whatever the expression is, and bounds its memory. So members can send any
expression. An expression matches a topic's whole name. Internal topics match none.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from sparklog.errors import InvalidRegularExpressionError
from sparklog.protocol.group_messages import REGEX_CHARS_MAX
from sparklog.types import INTERNAL_TOPICS


def matching_topics(regex: str, names: Iterable[str]) -> list[str]:
    """Return the names that the whole expression matches, without internal topics, sorted. Raises
    InvalidRegularExpressionError."""
    import pyarrow.compute as pc  # late: 10 MB that an idle broker does without

    check_regex(regex)
    candidates = pa.array(sorted(set(names) - INTERNAL_TOPICS), pa.string())
    return list(candidates.filter(pc.match_substring_regex(candidates, pattern=rf"\A(?:{regex})\z")).to_pylist())


def check_regex(regex: str) -> None:
    """Raise InvalidRegularExpressionError for a text that is no expression of RE2, or that is too long."""
    import pyarrow.compute as pc

    if len(regex) > REGEX_CHARS_MAX:
        raise InvalidRegularExpressionError(
            f"a regular expression of {len(regex)} characters; at most {REGEX_CHARS_MAX} are allowed"
        )
    try:
        # alone: in parentheses, some other texts are expressions, such as "a)|(b"
        pc.match_substring_regex(pa.array([""]), pattern=regex)
    except (pa.ArrowInvalid, UnicodeEncodeError) as e:
        raise InvalidRegularExpressionError(
            f"{regex[:200]!r} is no regular expression in the syntax of RE2 ({e}): correct the subscription"
        ) from e
