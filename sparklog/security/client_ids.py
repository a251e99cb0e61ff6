"""Client ids (`client.id`): the name that a client gives itself. Quotas, the audit log and lists of members show it.

A client id proves nothing: every client may choose any. So it is short, and has no character that changes the look of a
log line or a terminal: no control characters, no line ends, no marks of direction.
"""

from __future__ import annotations

from sparklog.errors import InvalidConfigError

CLIENT_ID_CHARS_MAX = 255


def is_client_id(text: str) -> bool:
    """Return True if `text` can be a client id; "" can be, for none."""
    return len(text) <= CLIENT_ID_CHARS_MAX and text.isprintable()


def check_client_id(text: str) -> str:
    """Return `text` itself. Raises InvalidConfigError."""
    if not isinstance(text, str) or not is_client_id(text):
        raise InvalidConfigError(
            f"client.id = {text!r:.42}: at most {CLIENT_ID_CHARS_MAX} characters, all of them printable (no line ends, "
            "no control characters)"
        )
    return text
