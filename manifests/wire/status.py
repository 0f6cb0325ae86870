"""Kubernetes `Status` objects: how the API says no."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from manifests.kinds.meta import GROUP

REASONS: dict[int, str] = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """One field's fault inside a Status."""

    reason: str
    message: str
    field: str


@dataclass(frozen=True, slots=True)
class StatusDetails:
    """What a Status is about. `kind` is the plural, or the Kind for 422."""

    name: str = ""
    kind: str = ""
    group: str = GROUP
    uid: str = ""
    causes: tuple[Cause, ...] = ()
    retry_after_seconds: int | None = None


class ApiError(Exception):
    """An answer of the API that is not success; becomes a Status at the edge."""

    def __init__(
        self, code: int, message: str, reason: str = "", details: StatusDetails | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.message = code, message
        self.reason = reason or REASONS.get(code, "InternalError")
        self.details = details or StatusDetails()

    def to_status(self) -> dict[str, Any]:
        """Return the Status object of this error."""
        details: dict[str, Any] = {
            key: value
            for key, value in (
                ("name", self.details.name),
                ("group", self.details.group if self.details.kind else ""),
                ("kind", self.details.kind),
                ("uid", self.details.uid),
            )
            if value
        }
        if self.details.causes:
            details["causes"] = [
                {"reason": item.reason, "message": item.message, "field": item.field}
                for item in self.details.causes
            ]
        if self.details.retry_after_seconds is not None:
            details["retryAfterSeconds"] = self.details.retry_after_seconds
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": details,
            "code": self.code,
        }

    @classmethod
    def from_status(cls, code: int, body: Any) -> "ApiError":
        """Return the error that a Status body means, or the nearest for a foreign body."""
        if not isinstance(body, Mapping) or body.get("kind") != "Status":
            error = body.get("error") if isinstance(body, Mapping) else None
            said = error.get("message") if isinstance(error, Mapping) else None
            return cls(code, str(said) if said else f"the server answered {code}")
        details = body.get("details") or {}
        causes = tuple(
            Cause(item.get("reason", ""), item.get("message", ""), item.get("field", ""))
            for item in details.get("causes") or ()
        )
        return cls(
            int(body.get("code") or code),
            str(body.get("message", "")),
            str(body.get("reason", "")),
            StatusDetails(
                name=details.get("name", ""),
                kind=details.get("kind", ""),
                group=details.get("group", GROUP),
                uid=details.get("uid", ""),
                causes=causes,
                retry_after_seconds=details.get("retryAfterSeconds"),
            ),
        )
