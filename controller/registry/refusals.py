"""The ways the registry says no, in Kubernetes' words. Pure; called by the registry only."""

from collections.abc import Sequence
from typing import Any

from manifests.kinds.meta import GROUP, VERSION
from manifests.kinds.scheme import Kind
from manifests.reading.field_errors import FieldError
from manifests.wire.status import ApiError, Cause, StatusDetails


def _details(kind: Kind, name: str, uid: str = "") -> StatusDetails:
    return StatusDetails(name=name, kind=kind.plural, uid=uid)


def unknown_resource() -> ApiError:
    """No such path or plural."""
    return ApiError(404, "the server could not find the requested resource")


def not_found(kind: Kind, name: str) -> ApiError:
    """No object of this name."""
    return ApiError(404, f'{kind.plural}.{GROUP} "{name}" not found', details=_details(kind, name))


def already_exists(kind: Kind, name: str) -> ApiError:
    """The name is taken."""
    message = f'{kind.plural}.{GROUP} "{name}" already exists'
    return ApiError(409, message, "AlreadyExists", _details(kind, name))


def conflict(kind: Kind, name: str, problem: str) -> ApiError:
    """The object is not in the state that the write expects."""
    message = f'Operation cannot be fulfilled on {kind.plural}.{GROUP} "{name}": {problem}'
    return ApiError(409, message, details=_details(kind, name))


def stale(kind: Kind, name: str, asked: str, current: str) -> ApiError:
    """The writer's resourceVersion is not the current one."""
    return conflict(
        kind,
        name,
        "the object has been modified; please apply your changes to the latest version and try "
        f"again (yours is resourceVersion {asked}, the latest is {current})",
    )


def bad_request(message: str) -> ApiError:
    """The request contradicts itself or its URL."""
    return ApiError(400, message)


def unknown_fields(kind: Kind, errors: Sequence[FieldError]) -> ApiError:
    """Strict decoding found fields that the kind does not have."""
    return bad_request(
        f'{kind.name} in version "{VERSION}" cannot be handled as a {kind.name}: '
        f"strict decoding error: {', '.join(unknown_field_text(error) for error in errors)}"
    )


def unknown_field_text(error: FieldError) -> str:
    """Return one unknown field as errors and warnings name it."""
    text = f'unknown field "{error.path}"'
    return f"{text} ({error.suggestion})" if error.suggestion else text


def invalid(kind: Kind, name: str, errors: Sequence[FieldError]) -> ApiError:
    """The object breaks rules; one cause a field."""
    lines = [str(error) for error in errors]
    text = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    causes = tuple(Cause(error.code.value, error.text, error.path) for error in errors)
    return ApiError(
        422,
        f'{kind.name}.{GROUP} "{name}" is invalid: {text}',
        details=StatusDetails(name=name, kind=kind.name, causes=causes),
    )


def expired(message: str) -> ApiError:
    """The version asked for is not kept; only a fresh list helps."""
    return ApiError(410, message)


def success(kind: Kind, obj: dict[str, Any]) -> dict[str, Any]:
    """Return the Status of a completed delete."""
    meta = obj["metadata"]
    details = {"name": meta["name"], "group": GROUP, "kind": kind.plural, "uid": meta["uid"]}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    }
