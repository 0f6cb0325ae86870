"""The agent's routes for the rest of the fleet: load stream, inspection, engine logs."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Protocol

import structlog
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from manifests.errors import Code, Refusal, RequestError, Retryable
from manifests.kinds.model import Source
from manifests.sizing.shape import ModelShape
from manifests.wire.report import (
    INSPECT_PATH,
    LOAD_PATH,
    LOG_PATH,
    Inspection,
    LoadReport,
    leave_out_shapes,
    shapes_of,
)
from node_agent.api.body import read_json_object
from node_agent.api.changes import Changes, rung
from node_agent.api.disconnect import GeneratorResponse
from node_agent.pool.base import Pool
from node_agent.sources.base import SourceError

_LOG = structlog.get_logger(__name__)
_LEAST_SECONDS = 0.1
_MOST_SECONDS = 0.9
_FOLLOW_SECONDS = 0.25
_READ_BYTES = 256 * 1024
_TAIL_BYTES = 4 * 1024 * 1024
_INSPECT_BODY_BYTES = 64 * 1024


class LoadSource(Protocol):
    """Whoever knows this node's load."""

    def report(self) -> LoadReport:
        """Return the figures of this moment, with the next sequence number."""
        ...


class Inspector(Protocol):
    """Whoever can tell what a source holds without loading it."""

    async def inspect(self, source: Source) -> Inspection:
        """Return what the source's headers say. Raises SourceError."""
        ...


class FleetRoutes:
    """Handlers for gateways and controllers."""

    def __init__(
        self, pool: Pool, load: LoadSource, inspector: Inspector, changes: Changes
    ) -> None:
        self._pool, self._load, self._inspector = pool, load, inspector
        self._changes = changes

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(LOAD_PATH, self._stream_load, methods=["GET"]),
            Route(INSPECT_PATH, self._inspect, methods=["POST"]),
            Route(LOG_PATH, self._log, methods=["GET"]),
        ]

    async def _stream_load(self, _: Request) -> Response:
        return GeneratorResponse(self._reports(), "application/x-ndjson")

    async def _reports(self) -> AsyncGenerator[bytes]:
        """Report at once on a change, within ten and one a second."""
        sent: dict[str, ModelShape] = {}
        while not self._changes.closed:
            change = self._changes.next()
            report = self._load.report()
            brief = leave_out_shapes(report, sent)
            sent = shapes_of(report)
            yield brief.model_dump_json(by_alias=True).encode() + b"\n"
            await asyncio.sleep(_LEAST_SECONDS)
            await rung(change, _MOST_SECONDS - _LEAST_SECONDS)

    async def _inspect(self, request: Request) -> Response:
        body = await read_json_object(request, _INSPECT_BODY_BYTES)
        try:
            source = Source.model_validate(body)
        except ValidationError:
            message = "The body must be a model source: {path} or {hub, revision}."
            raise RequestError(Refusal(Code.INVALID_VALUE, message)) from None
        try:
            inspection = await self._inspector.inspect(source)
        except SourceError as error:
            again = Retryable.NO if error.permanent else Retryable.LATER
            raise RequestError(Refusal(Code.NOT_FOUND, error.message, again)) from error
        return Response(inspection.model_dump_json(by_alias=True), media_type="application/json")

    async def _log(self, request: Request) -> Response:
        name = request.path_params["name"]
        tail = request.query_params.get("tailLines", "")
        if tail and not (tail.isdigit() and len(tail) < 10):
            message = "tailLines must be a whole number."
            raise RequestError(Refusal(Code.INVALID_VALUE, message, param="tailLines"))
        # Only names the pool knows reach the disk; a path in a name matches none.
        path = self._pool.log_path(name) if self._has(name) else None
        if path is None:
            raise RequestError(Refusal(Code.NOT_FOUND, "No engine of that name ran here."))
        follow = request.query_params.get("follow", "") in {"true", "1"}
        lines = int(tail) if tail else None
        return GeneratorResponse(
            self._log_chunks(name, path, lines, follow), "text/plain; charset=utf-8"
        )

    def _has(self, name: str) -> bool:
        return any(view.want.name == name for view in self._pool.views())

    async def _log_chunks(
        self, name: str, path: Path, tail_lines: int | None, follow: bool
    ) -> AsyncGenerator[bytes]:
        position = await asyncio.to_thread(find_tail, path, tail_lines)
        while True:
            change = self._changes.next()
            present = self._has(name) and not self._changes.closed
            data, position = await asyncio.to_thread(read_from, path, position)
            if data:
                yield data
            elif not follow or not present:
                return
            else:
                await rung(change, _FOLLOW_SECONDS)


def find_tail(path: Path, lines: int | None) -> int:
    """Return where the last lines of a file begin, looking back 4 MiB at most."""
    if lines is None:
        return 0
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(0, size - _TAIL_BYTES)
            file.seek(start)
            data = file.read(size - start)
    except OSError:
        return 0
    at = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        if at < 0:
            return start
        at = data.rfind(b"\n", 0, at)
    return size if lines == 0 else start + at + 1


def read_from(path: Path, position: int) -> tuple[bytes, int]:
    """Return the next bytes and where they end; a file that shrank is read from its start."""
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) < position:
                position = 0
            file.seek(position)
            data = file.read(_READ_BYTES)
    except OSError:
        return b"", position
    return data, position + len(data)
