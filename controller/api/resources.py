"""`/apis/GROUP/VERSION/PLURAL[/NAME[/status]]`: every verb on every kind.

Translates between HTTP and the registry; decides nothing about objects. Mounted by
`routes.py`.
"""

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from controller.api.endpoints import Answer, Endpoint, Handle
from controller.api.reading import Reader
from controller.api.requests import (
    JSON,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    check_content_type,
    parse_body,
    parse_dry_run,
    parse_field_validation,
    read_body,
    read_object,
)
from controller.api.responses import answer
from controller.registry import refusals
from controller.registry.registry import (
    Deleted,
    DeleteOptions,
    Registry,
    WriteOptions,
    find_kind,
    merging,
)
from manifests.kinds.meta import API_VERSION
from manifests.kinds.scheme import Kind
from manifests.wire.listwatch import RawObject
from manifests.wire.status import ApiError


class Resources:
    """The handlers, one a verb and path shape."""

    def __init__(self, registry: Registry, reader: Reader) -> None:
        self._registry, self._reader = registry, reader

    def routes(self) -> list[BaseRoute]:
        """Return the routes of every path shape."""
        base = f"/apis/{API_VERSION}/{{plural}}"
        shapes: tuple[tuple[str, str, Handle], ...] = (
            (base, "GET", self._list),
            (base, "POST", self._create),
            (base + "/{name}", "GET", self._get),
            (base + "/{name}", "PUT", self._replace),
            (base + "/{name}", "PATCH", self._patch),
            (base + "/{name}", "DELETE", self._delete),
            (base + "/{name}/status", "GET", self._get),
            (base + "/{name}/status", "PUT", self._replace),
            (base + "/{name}/status", "PATCH", self._patch),
        )
        by_path: dict[str, dict[str, Handle]] = {}
        for path, method, handle in shapes:
            by_path.setdefault(path, {})[method] = handle
        return [
            Route(path, Endpoint(_by_method(handles)), methods=list(handles))
            for path, handles in by_path.items()
        ]

    async def _list(self, request: Request) -> Answer:
        return await self._reader.list(request, _kind(request))

    async def _get(self, request: Request) -> Answer:
        kind = _kind(request)
        _subresource(request, kind)
        return await self._reader.get(request, kind, request.path_params["name"])

    async def _create(self, request: Request) -> Answer:
        kind = _kind(request)
        options = _options(request, "")
        obj = await read_object(request)
        created = await self._registry.create_with(kind.plural, obj, options)
        return answer(created.object, 201, created.warnings)

    async def _replace(self, request: Request) -> Answer:
        kind = _kind(request)
        options = _options(request, _subresource(request, kind))
        obj = await read_object(request)
        name = request.path_params["name"]
        stored = await self._registry.update_with(kind.plural, name, lambda _: obj, options)
        return answer(stored.object, 200, stored.warnings)

    async def _patch(self, request: Request) -> Answer:
        kind = _kind(request)
        options = _options(request, _subresource(request, kind))
        form = check_content_type(request, (MERGE_PATCH, STRATEGIC_PATCH))
        patch = parse_body(await read_body(request))
        if form == STRATEGIC_PATCH:
            _refuse_directives(patch)
        name = request.path_params["name"]
        stored = await self._registry.update_with(kind.plural, name, merging(patch), options)
        return answer(stored.object, 200, stored.warnings)

    async def _delete(self, request: Request) -> Answer:
        kind = _kind(request)
        body = await read_body(request)
        raw: RawObject = {}
        if body.strip():
            check_content_type(request, (JSON,))
            raw = parse_body(body)
        options, warnings = _delete_options(request, raw)
        name = request.path_params["name"]
        deleted = await self._registry.delete_with(kind.plural, name, options)
        return answer(_deletion(kind, deleted), 200, warnings)


def _by_method(handles: dict[str, Handle]) -> Handle:
    async def handle(request: Request) -> Answer:
        # The router adds HEAD wherever GET is.
        method = "GET" if request.method == "HEAD" else request.method
        return await handles[method](request)

    return handle


def _kind(request: Request) -> Kind:
    return find_kind(request.path_params["plural"])


def _subresource(request: Request, kind: Kind) -> str:
    if not request.scope["path"].endswith(f"/{request.path_params['name']}/status"):
        return ""
    if not kind.has_status:
        raise refusals.unknown_resource()
    return "status"


def _options(request: Request, subresource: str) -> WriteOptions:
    dry_run = parse_dry_run([v for v in request.query_params.getlist("dryRun") if v])
    return WriteOptions(subresource, dry_run, parse_field_validation(request))


def _delete_options(request: Request, raw: RawObject) -> tuple[DeleteOptions, list[str]]:
    listed = raw.get("dryRun") or []
    asked = [v for v in request.query_params.getlist("dryRun") if v]
    if not isinstance(listed, list):
        raise ApiError(400, "dryRun must be a list")
    expected = raw.get("preconditions") or {}
    if not isinstance(expected, dict):
        raise ApiError(400, "preconditions must be a mapping")
    policy = raw.get("propagationPolicy") or request.query_params.get("propagationPolicy")
    warnings = []
    if policy == "Foreground":
        warnings.append("propagationPolicy Foreground is carried out as Background")
    elif policy not in (None, "", "Background"):
        raise ApiError(
            400,
            f"propagationPolicy {policy!r} is not supported; dependents are always deleted, "
            "so choose Background",
        )
    options = DeleteOptions(
        expected.get("uid"), expected.get("resourceVersion"), parse_dry_run([*asked, *listed])
    )
    return options, warnings


def _deletion(kind: Kind, deleted: Deleted) -> RawObject:
    return refusals.success(kind, deleted.object) if deleted.gone else deleted.object


def _refuse_directives(patch: RawObject) -> None:
    """Refuse what a plain merge would get wrong. Raises: ApiError 415."""
    pending: list[object] = [patch]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if any(key.startswith("$") for key in value):
                raise ApiError(
                    415,
                    "strategic merge directives ($patch and such) are not supported; use "
                    f"--type merge ({MERGE_PATCH})",
                )
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
