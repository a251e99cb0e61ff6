"""Client ids (`client.id`): what a client calls itself. Quotas, the audit log and lists of members show it.

It is nobody's identity: every client may say what it likes. So it is short, and holds nothing that changes how a line
of a log or a terminal looks: no control characters, no line ends, no marks of direction.
"""

from __future__ import annotations

from sparklog.errors import InvalidConfigError

CLIENT_ID_CHARS_MAX = 255


def is_client_id(text: str) -> bool:
    """Whether `text` may be one; "" may: none is told."""
    return len(text) <= CLIENT_ID_CHARS_MAX and text.isprintable()


def check_client_id(text: str) -> str:
    """`text` itself. Raises InvalidConfigError."""
    if not isinstance(text, str) or not is_client_id(text):
        raise InvalidConfigError(
            f"client.id = {text!r:.42}: at most {CLIENT_ID_CHARS_MAX} characters, all of them printable (no line ends, "
            "no control characters)"
        )
    return text
