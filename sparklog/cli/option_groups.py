"""Groups of options that several commands have: one parameter of the command for all options of the group."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with each option of its groups as an option of its own.

    A group is a NamedTuple whose fields are annotated as options. A parameter is a group if its default is an instance;
    that instance has the options' defaults. The options stand at the parameter's place in the command's help.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        group = parameter.default
        if not hasattr(group, "_fields"):
            options.append(parameter.replace(annotation=hints[parameter.name]))
            continue
        groups[parameter.name] = group
        fields = get_type_hints(type(group), include_extras=True)
        for name in group._fields:
            options.append(parameter.replace(name=name, annotation=fields[name], default=getattr(group, name)))

    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = type(group)(*(values.pop(field) for field in group._fields))
        command(**values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {option.name: option.annotation for option in options}
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return run
