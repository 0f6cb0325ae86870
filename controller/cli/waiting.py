"""Waiting for an object: list, then watch, until the goal holds or time runs out."""

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import httpx
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from controller.cli.client import ApiClient
from controller.cli.exits import CliError, Exit
from controller.cli.output import stderr
from controller.cli.targets import Target, reference
from manifests.wire.status import ApiError

_LOOK_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Goal:
    """What to wait for: a condition type (or `create`, `delete`) and its status."""

    what: str
    status: str

    @property
    def done_text(self) -> str:
        """What to print once it holds."""
        if self.what in {"create", "delete"}:
            return "created" if self.what == "create" else "deleted"
        return "condition met"

    def holds(self, obj: dict[str, Any] | None) -> bool:
        """Whether the goal holds for an object, None when it does not exist. Pure."""
        if obj is None or self.what in {"create", "delete"}:
            return (obj is None) == (self.what == "delete")
        status = obj.get("status") or {}
        behind = status.get("observedGeneration", 0) < obj["metadata"].get("generation", 0)
        found = next((c for c in status.get("conditions") or [] if c["type"] == self.what), None)
        return not behind and found is not None and found["status"] == self.status


def parse_goal(text: str) -> Goal:
    """Return the goal that --for names. Raises CliError for another word."""
    if text in {"create", "delete"}:
        return Goal(text, "")
    key, _, rest = text.partition("=")
    type_, _, status = rest.partition("=")
    if key != "condition" or not type_:
        raise CliError(
            f"--for={text} is not understood",
            hint="use condition=Ready, condition=Ready=False, create or delete",
            code=Exit.USAGE,
        )
    return Goal(type_, status.capitalize() or "True")


def wait_for(
    client: ApiClient, target: Target, goal: Goal, deadline: float, *, show_progress: bool = False
) -> None:
    """Return once the goal holds. Raises CliError: timed out, not found, unreachable.

    Units: `deadline` in seconds of the monotonic clock.
    """
    bar = _Bar(client, target) if show_progress else nullcontext()
    with bar as shown:
        obj = None
        while True:
            obj = client.find(target.kind.plural, target.name or "")
            if goal.holds(obj):
                return
            if obj is None and goal.what not in {"create"}:
                raise CliError(f"{_name(target)} does not exist", code=Exit.NOT_FOUND)
            left = deadline - time.monotonic()
            if left <= 0:
                raise CliError(_why_not(target, obj), code=Exit.TIMED_OUT)
            if isinstance(shown, _Bar):
                shown.update(obj)
            _until_it_changes(client, target, obj, min(left, _LOOK_AGAIN_SECONDS))


def _until_it_changes(
    client: ApiClient, target: Target, obj: dict[str, Any] | None, seconds: float
) -> None:
    """Return at the object's next change, or after `seconds`."""
    version = (obj or {}).get("metadata", {}).get("resourceVersion", "")
    fields = f"metadata.name={target.name}"
    try:
        for line in client.watch(
            target.kind.plural, fields=fields, version=version, seconds=seconds
        ):
            if line.type != "BOOKMARK":
                return
    except ApiError as error:
        if error.code != 410:
            raise
    except CliError as error:
        # The read limit of the watch is our clock tick; a dead server shows at the next find.
        if not isinstance(error.__cause__, httpx.ReadTimeout | httpx.RemoteProtocolError):
            raise


def _name(target: Target) -> str:
    return reference(target.kind, target.name or "")


def _why_not(target: Target, obj: dict[str, Any] | None) -> str:
    """Return why waiting ended, with the object's own reason. Pure."""
    if obj is None:
        return f"timed out: {_name(target)} does not exist"
    conditions = (obj.get("status") or {}).get("conditions") or []
    ready = next((item for item in conditions if item["type"] == "Ready"), None)
    if ready is None:
        return f"timed out waiting for {_name(target)}: it has no Ready condition yet"
    return (
        f"timed out waiting for {_name(target)}: Ready={ready['status']} "
        f"{ready.get('reason', '')}: {ready.get('message', '')}"
    )


class _Bar:
    """A progress line on stderr: what the object says, and the bytes its engines have loaded."""

    def __init__(self, client: ApiClient, target: Target) -> None:
        self._client, self._target = client, target
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            console=stderr,
            transient=True,
        )
        self._task = self._progress.add_task(_name(target), total=None)

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._progress.stop()

    def update(self, obj: dict[str, Any] | None) -> None:
        """Show the newest state."""
        status = (obj or {}).get("status") or {}
        engines = [obj] if obj and obj["kind"] == "Engine" else self._engines()
        done, total, phases = 0, 0, []
        for engine in engines:
            state = engine.get("status") or {}
            progress = state.get("progress") or {}
            done, total = done + progress.get("done", 0), total + progress.get("total", 0)
            phases.append(state.get("phase", "Pending"))
        ready = next((c for c in status.get("conditions") or [] if c["type"] == "Ready"), None)
        reason = ready.get("reason", "") if ready else ""
        words = ", ".join(sorted(set(phases))) or reason
        self._progress.update(
            self._task,
            description=f"{_name(self._target)} {words}".rstrip(),
            completed=done if total else 0,
            total=total or None,
        )

    def _engines(self) -> list[dict[str, Any]]:
        if self._target.kind.name != "Model":
            return []
        found: list[dict[str, Any]] = self._client.list(
            "engines", fields=f"spec.model={self._target.name}"
        )["items"]
        return found
