"""A command's options as one value object, for commands with many."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

_Flags = TypeVar("_Flags")


def with_flags(
    flags: type[_Flags],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command's last parameter, a dataclass of annotated typer options, as its options."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        *own, last = inspect.signature(command).parameters.values()
        given = [item.replace(annotation=hints[item.name]) for item in own]
        kinds = get_type_hints(flags, include_extras=True)
        options = [
            inspect.Parameter(
                item.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if item.default is MISSING else item.default,
                annotation=kinds[item.name],
            )
            for item in fields(flags)  # type: ignore[arg-type]
        ]
        names = {item.name for item in options}

        def run(**values: Any) -> None:
            chosen = {name: value for name, value in values.items() if name in names}
            rest = {name: value for name, value in values.items() if name not in names}
            command(**rest, **{last.name: flags(**chosen)})

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {item.name: item.annotation for item in (*given, *options)}
        run.__signature__ = inspect.Signature([*given, *options])  # type: ignore[attr-defined]
        return run

    return decorate
