"""The enforcer's shell: what it sends to engines, what it tells, and that obeyed orders end it."""

import json
from dataclasses import dataclass, field, replace

from manifests.kinds.engine import EnginePhase, EngineSpec
from manifests.kinds.node import PressureLevel
from node_agent.engine.messages import Abort, Command, Reclaim
from node_agent.memory.enforcer import Enforcer, EnforcerHooks
from node_agent.memory.enforcer_plan import AbortRow, Action, Evict, ReclaimCache, ShrinkHotCache
from node_agent.memory.limits import Watermarks
from node_agent.pool.base import EngineView, EngineWant, RowView

MARKS = Watermarks(soft_bytes=800, hard_bytes=950, emergency_bytes=1000)


def make_view(name: str, *rows: RowView, pinned: bool = False, idle: float = 60.0) -> EngineView:
    spec = EngineSpec.model_validate_json(
        json.dumps(
            {
                "model": name,
                "node": "here",
                "revision": "r",
                "source": {"path": "/m"},
                "keep": {"pinned": pinned},
            }
        )
    )
    return EngineView(
        EngineWant(name, f"uid-{name}", 1, spec),
        EnginePhase.READY,
        pid=hash(name) % 1000 + 2,
        making_progress=True,
        idle_seconds=None if rows else idle,
        leases=len(rows),
        rows=rows,
    )


@dataclass
class World:
    """A pool and an arbiter of declared bytes, with a clock that only the test moves."""

    held: dict[str, int]
    engines: dict[str, EngineView]
    now: float = 0.0
    stubborn: bool = False
    sent: list[tuple[str, Command]] = field(default_factory=list)
    paused: list[bool] = field(default_factory=list)
    row_bytes: int = 100
    hot_bytes: int = 0
    coming: int = 0

    def views(self) -> tuple[EngineView, ...]:
        return tuple(self.engines.values())

    def send(self, name: str, command: Command) -> bool:
        self.sent.append((name, command))
        if isinstance(command, Abort) and not self.stubborn:
            view = self.engines[name]
            rows = tuple(row for row in view.rows if row.request_id != command.request_id)
            self.engines[name] = replace(view, rows=rows, leases=len(rows))
            self.held[name] -= self.row_bytes
        return True

    def unload(self, name: str, reason: str, *, urgent: bool = False) -> bool:
        view = self.engines[name]
        if view.rows or view.leases or view.want.spec.keep.pinned:
            return False
        self.engines[name] = replace(view, phase=EnginePhase.DRAINING, message=reason)
        return True

    def watermarks(self) -> Watermarks | None:
        return MARKS

    def used_bytes(self) -> int:
        return sum(self.held.values())

    def engine_footprint_bytes(self, engine: str) -> int:
        return self.held[engine]

    def set_paused(self, paused: bool) -> None:
        self.paused.append(paused)

    def coming_bytes(self) -> int:
        return self.coming

    def size_bytes(self) -> int:
        return self.hot_bytes

    def shrink(self, target_bytes: int) -> None:
        self.hot_bytes = target_bytes


@dataclass
class Told:
    actions: list[Action] = field(default_factory=list)
    levels: list[tuple[PressureLevel, PressureLevel]] = field(default_factory=list)


def enforce(world: World) -> tuple[Enforcer, Told]:
    told = Told()
    hooks = EnforcerHooks(
        acted=told.actions.append,
        level_changed=lambda before, after: told.levels.append((before, after)),
        clock=lambda: world.now,
        hot_cache=world,
    )
    return Enforcer(world, world, hooks), told


def run(enforcer: Enforcer, world: World, seconds: float) -> None:
    end = world.now + seconds
    while world.now < end:
        enforcer.act()
        world.now += enforcer.poll_seconds


def rows(count: int, prefilling: bool = True) -> tuple[RowView, ...]:
    return tuple(RowView(f"r{i}", float(i), prefilling, True) for i in range(count))


def test_twelve_prompts_over_the_limit_fall_one_by_one_until_it_holds_again() -> None:
    """B44: each victim once, newest first, and small requests are let in afterwards."""
    world = World({"a": 1300}, {"a": make_view("a", *rows(12))})
    world.held["a"] = 999
    world.row_bytes = 20
    enforcer, told = enforce(world)
    run(enforcer, world, 40)
    victims = [a.request_id for a in told.actions if isinstance(a, AbortRow)]
    assert victims == ["r11", "r10", "r9"]
    assert len(world.engines["a"].rows) == 9
    world.held["a"] = 300
    run(enforcer, world, 20)
    assert world.paused[-1] is False
    assert told.levels[-1][1] is PressureLevel.OK


def test_an_abort_says_it_fits_later_and_is_followed_by_a_reclaim() -> None:
    world = World({"a": 960}, {"a": make_view("a", *rows(1))})
    enforcer, _ = enforce(world)
    run(enforcer, world, 2)
    kinds = [type(command) for _, command in world.sent]
    at = kinds.index(Abort)
    abort = world.sent[at][1]
    assert isinstance(abort, Abort)
    assert (abort.code, abort.retryable) == ("prefill_memory_exceeded", "later")
    assert "try again" in abort.message
    assert kinds[at + 1] is Reclaim


def test_an_engine_that_does_not_obey_is_asked_again_and_others_are_spared_meanwhile() -> None:
    world = World({"a": 960}, {"a": make_view("a", *rows(3))}, stubborn=True)
    enforcer, told = enforce(world)
    run(enforcer, world, 10)
    victims = [a.request_id for a in told.actions if isinstance(a, AbortRow)]
    assert set(victims) == {"r2"}
    assert 2 <= len(victims) <= 10


def test_idle_engines_go_at_soft_and_one_that_left_is_not_asked_again() -> None:
    world = World(
        {"a": 500, "b": 350}, {"a": make_view("a", *rows(1)), "b": make_view("b")}, now=100.0
    )
    enforcer, told = enforce(world)
    enforcer.act()
    world.now += 30
    run(enforcer, world, 10)
    assert [a.engine for a in told.actions if isinstance(a, Evict)] == ["b"]
    assert world.engines["b"].phase is EnginePhase.DRAINING
    assert world.engines["a"].phase is EnginePhase.READY


def test_only_measures_that_were_taken_are_told() -> None:
    world = World({"a": 960}, {"a": make_view("a", pinned=True)})
    world.hot_bytes = 50
    enforcer, told = enforce(world)
    run(enforcer, world, 1)
    assert {type(action) for action in told.actions} == {ReclaimCache, ShrinkHotCache}
    assert world.hot_bytes == 0


def test_room_for_a_load_is_made_with_the_coldest_engine_that_suffices() -> None:
    world = World(
        {"small": 50, "big": 400, "warm": 400},
        {
            "small": make_view("small", idle=900),
            "big": make_view("big", idle=500),
            "warm": make_view("warm", idle=20),
        },
    )
    enforcer, told = enforce(world)
    enforcer.act()
    world.now += 60
    room = enforcer.make_room("new", 300, 0)
    assert (room.enough, room.evict) == (True, ("big",))
    assert [a.reason for a in told.actions if isinstance(a, Evict)] == ["to make room for new"]


def test_an_engine_that_was_just_loaded_is_not_traded_for_another() -> None:
    """B50: two models that take turns keep a minimum stay."""
    world = World({"a": 400}, {"a": make_view("a", idle=1.0)})
    enforcer, _ = enforce(world)
    enforcer.act()
    world.now += 5
    assert not enforcer.make_room("b", 300, 0).enough
    world.now += 6
    assert enforcer.make_room("b", 300, 0).evict == ("a",)


def test_a_pause_without_readings_does_not_last() -> None:
    world = World({"a": 960}, {"a": make_view("a", *rows(1))})
    enforcer, told = enforce(world)
    enforcer.act()
    assert world.paused == [True]
    for _ in range(20):
        enforcer.miss()
        world.now += 1
    assert world.paused[-1] is False
    assert told.levels[-1] == (PressureLevel.HARD, PressureLevel.OK)


def test_room_is_made_of_cached_blocks_before_a_model_goes() -> None:
    world = World({"a": 400, "b": 400}, {name: make_view(name, idle=60.0) for name in "ab"})
    world.hot_bytes = 300
    enforcer, told = enforce(world)
    enforcer.act()
    world.now += 60
    room = enforcer.make_room("new", 250, 50)
    assert (room.enough, room.evict, world.hot_bytes) == (True, (), 100)
    assert told.actions == [ShrinkHotCache(100)]


def test_blocks_that_were_given_up_already_are_not_asked_for_again() -> None:
    world = World({"a": 400}, {"a": make_view("a", idle=60.0)})
    world.hot_bytes, world.coming = 100, 200
    enforcer, told = enforce(world)
    enforcer.act()
    assert enforcer.make_room("new", 250, 50).enough
    assert (world.hot_bytes, told.actions) == (100, [])


def test_a_demand_that_would_not_fit_even_so_costs_no_block() -> None:
    world = World({"a": 400}, {"a": make_view("a", *rows(1))})
    world.hot_bytes = 100
    enforcer, _ = enforce(world)
    enforcer.act()
    assert not enforcer.make_room("new", 600, 50).enough
    assert world.hot_bytes == 100
