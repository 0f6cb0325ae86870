"""Which names exist, which can be served now, and why one cannot; pure.

Works on the last state the gateway saw, never on the network, so a listing never waits for a
node. Called by the handlers.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from controller.gateway.http.peek import shown_name
from controller.gateway.nodes.endpoints import EndpointKey, EndpointView
from controller.gateway.nodes.routing import Asking, plan_models
from manifests.errors import Code, Refusal, Retryable
from manifests.kinds.engine import Engine, EnginePhase
from manifests.kinds.meta import ConditionStatus
from manifests.kinds.model import Model
from manifests.kinds.route import Route
from manifests.times import parse_time

_NAMES_SHOWN = 20
_STARTING = (EnginePhase.PENDING, EnginePhase.DOWNLOADING, EnginePhase.LOADING)


@dataclass(frozen=True)
class FleetView:
    """Everything routing reads, frozen.

    `names` maps each name of a model to that model, `routes` each name of a Route to it, which
    wins; `down` names the nodes that are not answering, `unheard` those that never reported.
    """

    synced: bool = False
    endpoints: tuple[EndpointView, ...] = ()
    models: Mapping[str, Model] = field(default_factory=dict)
    engines: Mapping[str, Engine] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    down: frozenset[str] = frozenset()
    routes: Mapping[str, Route] = field(default_factory=dict)
    unheard: frozenset[str] = frozenset()

    def candidates(self, model: str) -> tuple[EndpointView, ...]:
        """Return the endpoints of one model, accepting or not."""
        return self._by_model.get(model, ())

    def has_other(self, models: Iterable[str], tried: Collection[EndpointKey], node: str) -> bool:
        """Whether another node has an open endpoint of these models that was not tried yet."""
        return any(
            item.accepting and item.key.node != node and item.key not in tried
            for model in models
            for item in self.candidates(model)
        )

    def is_complete(self, model: str) -> bool:
        """Whether every engine of a model that is declared has told what it can hold."""
        return self.synced and model not in self._incomplete

    @cached_property
    def _incomplete(self) -> frozenset[str]:
        """The models with an engine that has not told."""
        told = {(item.model, item.key.engine) for item in self.endpoints if item.room is not None}
        return frozenset(
            engine.spec.model
            for name, engine in self.engines.items()
            if engine.metadata.deletion_timestamp is None and (engine.spec.model, name) not in told
        )

    @cached_property
    def _by_model(self) -> Mapping[str, tuple[EndpointView, ...]]:
        found: dict[str, tuple[EndpointView, ...]] = {}
        for item in self.endpoints:
            found[item.model] = (*found.get(item.model, ()), item)
        return found


def plan_names(models: Mapping[str, Model], endpoints: Sequence[EndpointView]) -> Mapping[str, str]:
    """Return the model behind each public name.

    A model's own name beats an alias; of two models with one alias the first by name has it.
    """
    owned = set(models) | {item.model for item in endpoints}
    pairs = [(alias, name) for name, model in models.items() for alias in model.spec.aliases]
    pairs += [(alias, item.model) for item in endpoints for alias in item.aliases]
    names = {name: name for name in owned}
    for alias, model in sorted(set(pairs)):
        names.setdefault(alias, model)
    return names


def names_of(view: FleetView, name: str) -> tuple[str, ...]:
    """Return the names by which a key may be allowed to use what a request calls `name`.

    Whoever may use a model may call it by its aliases. A Route is allowed by what it was called
    only, since it leads to several Models.
    """
    if name in view.routes:
        return (name,)
    return tuple(dict.fromkeys((name, view.names.get(name, name))))


def resolve(view: FleetView, name: str, asking: Asking) -> tuple[str, ...] | Refusal:
    """Return the models that a request's `model` means, in the order to try, or why none."""
    route = view.routes.get(name)
    if route is not None:
        known = tuple(item for item in plan_models(route, asking) if view.names.get(item) == item)
        return known or _no_backend(name)
    model = view.names.get(name)
    if model is not None:
        return (model,)
    if not view.synced:
        return Refusal(
            Code.NO_READY_ENGINE,
            "The gateway has not seen the fleet yet.",
            Retryable.LATER,
            retry_after_seconds=2,
        )
    return Refusal(
        Code.MODEL_NOT_FOUND,
        f"The model '{shown_name(name)}' does not exist.",
        hint=_offer(sorted({*view.names, *view.routes})),
        param="model",
    )


def _no_backend(name: str) -> Refusal:
    return Refusal(
        Code.NO_READY_ENGINE,
        f"None of the Models behind the Route '{shown_name(name)}' exists.",
        Retryable.LATER,
        hint="See the ResolvedRefs condition of `mlxctl describe route`.",
        param="model",
        retry_after_seconds=10,
    )


def list_models(view: FleetView, default_created_seconds: int) -> list[dict[str, Any]]:
    """Return the OpenAI model objects of every name that is served, sorted.

    A model whose engines were all unloaded to make room is: a request brings one back. A route
    is served when one of its models is.
    """
    ready = [item for item in view.endpoints if item.accepting or item.wakes]
    served = {item.model for item in ready}
    reachable = served | {alias for item in ready for alias in item.aliases}
    found: dict[str, Model | Route | None] = {
        name: view.models.get(model)
        for name, model in view.names.items()
        if model in served and name in reachable and name not in view.routes
    }
    found |= {
        name: route
        for name, route in view.routes.items()
        if served.intersection(route.spec.model_names)
    }
    return [
        {
            "id": name,
            "object": "model",
            "created": _created(obj, default_created_seconds),
            "owned_by": "mlxfleet",
        }
        for name, obj in sorted(found.items())
    ]


def is_catching_up(view: FleetView, model: str) -> bool:
    """Whether an engine is declared ready whose node has not yet reported it open.

    What is declared and what a node reports come by two ways, either of them first.
    """
    open_ = {item.key.engine for item in view.candidates(model) if item.accepting or item.wakes}
    return not open_ and any(
        item.status.phase is EnginePhase.READY
        and item.metadata.deletion_timestamp is None
        and item.spec.node not in view.down
        for item in view.engines.values()
        if item.spec.model == model
    )


def explain_no_engine(view: FleetView, model: str) -> Refusal:
    """Return why no engine of a known model can take a request now."""
    copies = [item for item in view.engines.values() if item.spec.model == model]
    starting = any(item.status.phase in _STARTING for item in copies)
    parts = [_describe(item) for item in copies[:_NAMES_SHOWN]]
    parts += _false_conditions(view.models.get(model))
    return Refusal(
        Code.NO_READY_ENGINE,
        f"No ready engine serves the model '{model}' now.",
        Retryable.LATER,
        hint=" ".join(parts) or "No node runs it.",
        param="model",
        retry_after_seconds=5 if starting or not copies else 10,
    )


def _describe(engine: Engine) -> str:
    status = engine.status
    if status.phase is EnginePhase.READY:
        return f"Engine {engine.metadata.name} is Ready, but node {engine.spec.node} is not open."
    why = f" ({status.message})" if status.message else ""
    return f"Engine {engine.metadata.name} on {engine.spec.node} is {status.phase.value}{why}."


def _false_conditions(model: Model | None) -> list[str]:
    if model is None:
        return []
    said = [
        item.message.rstrip(".") + "."
        for item in model.status.conditions
        if item.status is ConditionStatus.FALSE and item.message
    ]
    return list(dict.fromkeys(said))


def _offer(names: Sequence[str]) -> str:
    if not names:
        return "No models exist; apply one."
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"Existing models: {', '.join(names[:_NAMES_SHOWN])}{more}."


def _created(obj: Model | Route | None, default_seconds: int) -> int:
    stamp = obj.metadata.creation_timestamp if obj is not None else None
    parsed = parse_time(stamp) if stamp else None
    return default_seconds if parsed is None else int(parsed)
