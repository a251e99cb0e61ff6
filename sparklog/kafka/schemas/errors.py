"""Errors of the schema registry, with the codes of Confluent's.

A code has the HTTP status in its first three digits.
"""

from __future__ import annotations

SUBJECT_NOT_FOUND = 40401
VERSION_NOT_FOUND = 40402
SCHEMA_NOT_FOUND = 40403
SUBJECT_SOFT_DELETED = 40404
SUBJECT_NOT_SOFT_DELETED = 40405
VERSION_SOFT_DELETED = 40406
VERSION_NOT_SOFT_DELETED = 40407
SUBJECT_WITHOUT_LEVEL = 40408
SUBJECT_WITHOUT_MODE = 40409
UNAUTHORIZED = 40101
FORBIDDEN = 40301
INCOMPATIBLE = 409
INVALID_SCHEMA = 42201
INVALID_VERSION = 42202
INVALID_LEVEL = 42203
INVALID_MODE = 42204
OPERATION_NOT_PERMITTED = 42205
REFERENCE_EXISTS = 42206
ID_DOES_NOT_MATCH = 42207
INVALID_SUBJECT = 42208
STORE_FAILED = 50001
TIMED_OUT = 50002


class RegistryError(Exception):
    """The refusal of a request, as its answer states it."""

    def __init__(self, code: int, message: str) -> None:
        """`code`: an error code of Confluent's registry, or an HTTP status."""
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> int:
        """The HTTP status of the answer."""
        return int(str(self.code)[:3])


def missing_subject(subject: str) -> RegistryError:
    """Return the error for a subject without versions."""
    return RegistryError(SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")


def missing_version(version: object) -> RegistryError:
    """Return the error for a version that the subject does not have."""
    return RegistryError(VERSION_NOT_FOUND, f"Version {version} not found.")


def missing_schema(schema_id: int | None = None) -> RegistryError:
    """Return the error for a schema id, or for a text that is not registered (None)."""
    return RegistryError(SCHEMA_NOT_FOUND, "Schema not found" if schema_id is None else f"Schema {schema_id} not found")


def invalid_schema(reason: str) -> RegistryError:
    """Return the error for a schema that is not valid, or beyond a limit."""
    return RegistryError(INVALID_SCHEMA, f"Invalid schema: {reason}")
