"""What a command line means by KIND, NAME and KIND/NAME. Pure."""

import difflib
from dataclasses import dataclass

from controller.cli.exits import CliError, Exit
from manifests.kinds.scheme import BY_PLURAL, KINDS, Kind, resolve_kind


@dataclass(frozen=True, slots=True)
class Target:
    """A kind, and a name or all of it."""

    kind: Kind
    name: str | None


def require_kind(word: str) -> Kind:
    """Return the kind a word means. Raises CliError naming the nearest kind."""
    kind = resolve_kind(word)
    if kind is not None:
        return kind
    near = difflib.get_close_matches(word.lower(), [*BY_PLURAL, *(k.singular for k in KINDS)], n=1)
    hint = f"did you mean {near[0]}?" if near else "kinds are " + ", ".join(BY_PLURAL)
    raise CliError(f"there is no kind {word!r}", hint=hint, code=Exit.USAGE)


def parse_targets(words: list[str]) -> tuple[Target, ...]:
    """Return targets from `KIND[,KIND]`, `KIND NAME...` or `KIND/NAME...`."""
    if not words:
        raise CliError("name a kind, such as models or nodes,engines", code=Exit.USAGE)
    if any("/" in word for word in words):
        targets = []
        for word in words:
            kind, slash, name = word.partition("/")
            if not slash or not name:
                raise CliError(
                    f"{word!r} does not say KIND/NAME, as the others do", code=Exit.USAGE
                )
            targets.append(Target(require_kind(kind), name))
        return tuple(targets)
    kinds = [require_kind(word) for word in words[0].split(",") if word]
    names: list[str | None] = list(words[1:]) or [None]
    return tuple(Target(kind, name) for kind in kinds for name in names)


def reference(kind: Kind, name: str) -> str:
    """Return KIND/NAME as commands print it."""
    return f"{kind.singular}/{name}"
