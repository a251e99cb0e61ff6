"""Errors of the native Delta library: their text, and the failures that no repetition mends."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from sparklog.errors import InvalidConfigError, LakePausedError, LakeUnavailableError

TEXT_CHARS_MAX = 700
MISSING = "the package deltalake is not installed here: pip install 'sparklog[lake]'"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_ARROW = "↳"
_CAUSES_BY_ERRNO = {
    errno.EACCES: "the worker lacks the right to the files",
    errno.EPERM: "the worker lacks the right to the files",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
}
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_CAUSES_BY_TEXT = (
    (
        re.compile(r"\b(ExpiredToken|TokenRefreshRequired|ExpiredTokenException|RequestExpired)\b"),
        "expired credentials",
    ),
    (re.compile(r"\b(InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|401 Unauthorized)\b"), "wrong credentials"),
    (re.compile(r"\b(AccessDenied|403 Forbidden|lacked the necessary privileges)\b"), "the worker lacks the right"),
    (re.compile(r"\b(NoSuchBucket|The specified bucket does not exist)\b"), "the bucket does not exist"),
    (re.compile(r"\bFeature '[^']*' is not supported\b"), "deltalake cannot read a table with such a feature"),
    (re.compile(r"\bUnsupported table features required\b"), "deltalake does not support the table's features"),
)
"""Causes by the text of an object store's answer, the most specific first."""
_CLEAR_TEXT_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AWS_S3_ENDPOINT")


def require_deltalake() -> None:
    """Check that the package deltalake can be imported. Raises InvalidConfigError."""
    try:
        import deltalake  # noqa: F401
    except ImportError as e:
        raise InvalidConfigError(MISSING) from e


class CommitConflictError(Exception):
    """A commit has failed, mostly because another writer has committed first, or its outcome is unknown."""

    def __init__(self, text: str, lasting: str = "") -> None:
        """Create the error. `lasting`: cause that a repetition meets again; empty if a repetition can succeed."""
        super().__init__(text)
        self.lasting = lasting

    def raise_if_lasting(self, location: str) -> None:
        """Raise LakeUnavailableError if a repetition would fail in the same way."""
        if self.lasting:
            raise LakeUnavailableError(f"the table at {location} cannot be written: {self.lasting}: {self}") from self


def text_of(error: BaseException) -> str:
    """Return the text of an error in one line, with the causes that the library lists below its first line."""
    lines = [line.replace(_ARROW, " ").strip() for line in _ANSI.sub("", str(error)).splitlines()]
    text = ": ".join(line for line in lines if line) or type(error).__name__
    half = TEXT_CHARS_MAX // 2
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:half]} … {text[-half:]}"


def lasting_cause(error: BaseException | None) -> str:
    """Return the cause of a failure that no repetition mends, such as missing rights, a full disk or expired
    credentials; "" for every other failure. The causes of an error are searched, too."""
    while error is not None:
        if isinstance(error, CommitConflictError) and error.lasting:
            return error.lasting
        if isinstance(error, OSError) and error.errno in _CAUSES_BY_ERRNO:
            return _CAUSES_BY_ERRNO[error.errno]
        text = str(error)
        for number in _OS_ERROR.findall(text):
            if int(number) in _CAUSES_BY_ERRNO:
                return _CAUSES_BY_ERRNO[int(number)]
        for pattern, cause in _CAUSES_BY_TEXT:
            if pattern.search(text):
                return cause
        error = error.__cause__
    return ""


def commit_conflict(error: BaseException) -> CommitConflictError:
    """Return the error of a commit that the library did not confirm."""
    return CommitConflictError(text_of(error), lasting_cause(error))


@contextmanager
def delta_errors(location: str) -> Iterator[None]:
    """Convert errors of the native library to LakeUnavailableError."""
    from deltalake.exceptions import CommitFailedError, TableNotFoundError

    try:
        yield
    except (CommitFailedError, TableNotFoundError, CommitConflictError, LakePausedError, LakeUnavailableError):
        raise
    except Exception as e:
        raise LakeUnavailableError(f"the table at {location} cannot be reached: {text_of(e)}") from e


def check_clear_text(location: str) -> None:
    """Check that the library may use an endpoint without TLS, if the environment names one.

    Without the permission the library refuses every request with an error that does not name the variable.

    Raises InvalidConfigError: The location is in S3, its endpoint begins with http://, and AWS_ALLOW_HTTP is not true.
    """
    if not location.startswith(("s3://", "s3a://")):
        return
    environment = {name.upper(): value for name, value in os.environ.items()}
    if environment.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1", "yes", "on", "y", "t"):
        return
    for name in _CLEAR_TEXT_ENDPOINTS:
        address = environment.get(name, "")
        if address.lower().startswith("http://"):
            raise InvalidConfigError(
                f"{name} = {address!r} has no TLS: set AWS_ALLOW_HTTP=true in the environment of the lake worker and of "
                "every reader, or use an endpoint with https://"
            )
