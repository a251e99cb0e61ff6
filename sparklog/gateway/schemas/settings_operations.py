"""The registry's operations on levels of compatibility and modes, of one subject or by default (subject "")."""

from __future__ import annotations

from sparklog.gateway.schemas.operations import (
    IMPORT,
    READONLY,
    READWRITE,
    Outcome,
    Request,
    check_subject,
    check_writable,
    level_of,
    mode_of,
)
from sparklog.gateway.schemas.parsed_schemas import ParsedSchemas
from sparklog.gateway.schemas.state import RegistryState, level_record, mode_record
from sparklog.kafka.schemas import errors as e
from sparklog.kafka.schemas.errors import RegistryError
from sparklog.kafka.schemas.schema_types import Level

MODES = (READWRITE, READONLY, IMPORT)


def show_level(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the level of a subject, or the default. Raises RegistryError."""
    subject = request.subject
    if subject and subject not in state.levels and not request.flag("defaultToGlobal"):
        reason = f"Subject '{subject}' does not have subject-level compatibility configured"
        raise RegistryError(e.SUBJECT_WITHOUT_LEVEL, reason)
    return Outcome({"compatibilityLevel": level_of(state, subject).value})


def set_level(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Set the level of a subject, or the default. Raises RegistryError."""
    others = sorted(name for name, value in request.body.items() if name != "compatibility" and value is not None)
    if others:
        reason = f"{', '.join(others)[:200]} cannot be set: only compatibility can"
        raise RegistryError(e.INVALID_LEVEL, reason)
    try:
        level = Level(str(request.body.get("compatibility", "")).upper())
    except ValueError:
        possible = ", ".join(one.value.lower() for one in Level)
        raise RegistryError(e.INVALID_LEVEL, f"Invalid compatibility level. Valid values are {possible}") from None
    _check_setting(state, request.subject)
    return Outcome({"compatibility": level.value}, [level_record(request.subject, level.value)])


def delete_level(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Delete the level of a subject, or the default. Raises RegistryError."""
    if request.subject and request.subject not in state.levels:
        raise e.missing_subject(request.subject)
    _check_setting(state, request.subject)
    former = level_of(state, request.subject).value
    return Outcome({"compatibilityLevel": former}, [level_record(request.subject, None)])


def show_mode(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the mode of a subject, or the default. Raises RegistryError."""
    subject = request.subject
    if subject and subject not in state.modes and not request.flag("defaultToGlobal"):
        reason = f"Subject '{subject}' does not have subject-level mode configured"
        raise RegistryError(e.SUBJECT_WITHOUT_MODE, reason)
    return Outcome({"mode": mode_of(state, subject)})


def set_mode(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Set the mode of a subject, or the default. IMPORT needs an empty subject or registry, or `force`. Raises
    RegistryError."""
    mode, subject = str(request.body.get("mode", "")).upper(), request.subject
    if mode not in MODES:
        raise RegistryError(e.INVALID_MODE, f"Invalid mode. Valid values are {', '.join(MODES)}")
    if subject:
        check_subject(subject)
    existing = state.active(subject) if subject else any(state.active(one) for one in state.subjects)
    if mode == IMPORT and existing and mode_of(state, subject) != IMPORT and not request.flag("force"):
        reason = "Cannot import since found existing subjects: delete them, or set force=true"
        raise RegistryError(e.OPERATION_NOT_PERMITTED, reason)
    return Outcome({"mode": mode}, [mode_record(subject, mode)])


def delete_mode(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Delete the mode of a subject, or the default. Raises RegistryError."""
    if request.subject and request.subject not in state.modes:
        raise e.missing_subject(request.subject)
    return Outcome({"mode": mode_of(state, request.subject)}, [mode_record(request.subject, None)])


def _check_setting(state: RegistryState, subject: str) -> None:
    if subject:
        check_subject(subject)
    check_writable(state, subject)
