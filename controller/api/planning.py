"""`POST /fleet/v1/plan`: where models would go, without storing anything.

The decision is the reconcilers'; this translates. Mounted by `routes.py`.
"""

from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from controller.api.requests import read_object
from controller.api.responses import answer
from controller.registry import refusals
from controller.registry.admission import FieldValidation, admit
from manifests.kinds.model import Model
from manifests.kinds.scheme import BY_NAME, parse_object
from manifests.wire.plan import PLAN_PATH, PlanReport
from manifests.wire.status import ApiError

Planner = Callable[[Sequence[Model]], Awaitable[PlanReport]]
MAX_MODELS = 100


class Planning:
    """Answers plans; without a planner (another process reconciles) it says so."""

    def __init__(self, planner: Planner | None) -> None:
        self._planner = planner

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route(PLAN_PATH, self._plan, methods=["POST"])]

    async def _plan(self, request: Request) -> Response:
        if self._planner is None:
            raise ApiError(
                503, "this controller runs without the reconcile role; ask one that has it"
            )
        body = await read_object(request)
        items = body.get("items")
        if not isinstance(items, list) or set(body) != {"items"}:
            raise refusals.bad_request('the body must be {"items": [MODEL, ...]}')
        if len(items) > MAX_MODELS:
            raise refusals.bad_request(f"{len(items)} models; at most {MAX_MODELS} at once")
        report = await self._planner([_parse_model(item) for item in items])
        return answer(report.model_dump(mode="json", by_alias=True))


def _parse_model(item: object) -> Model:
    if not isinstance(item, dict):
        raise refusals.bad_request("every item must be a Model object")
    model = parse_object(admit(BY_NAME["Model"], item, FieldValidation.STRICT).object)
    if not isinstance(model, Model):
        raise refusals.bad_request("every item must be a Model object")
    return model
