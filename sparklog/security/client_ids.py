"""Client ids (`client.id`): the name that a client gives itself. Quotas, the audit log and lists of members use it.

A client id proves nothing, because every client can choose any id. So its length is limited, and it has no characters
that change the look of a log line or a terminal: control characters, line ends, marks of writing direction.
"""

from __future__ import annotations

from sparklog.errors import InvalidConfigError

CLIENT_ID_CHARS_MAX = 255


def is_client_id(text: str) -> bool:
    """Return True if `text` can be a client id. An empty text is allowed; it means that the client has no id."""
    return len(text) <= CLIENT_ID_CHARS_MAX and text.isprintable()


def printable_client_id(text: str) -> str:
    """Return `text` with escapes for the characters that a client id cannot have, cut to CLIENT_ID_CHARS_MAX."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text[:CLIENT_ID_CHARS_MAX]


def check_client_id(text: str) -> str:
    """Return `text` if it can be a client id. Raises InvalidConfigError otherwise."""
    if not isinstance(text, str) or not is_client_id(text):
        raise InvalidConfigError(
            f"client.id = {text!r:.42}: at most {CLIENT_ID_CHARS_MAX} characters, all of them printable (no line ends, "
            "no control characters)"
        )
    return text
