"""Whether memory came back after an engine's end."""

from node_agent.memory.stranded_plan import WiredHistory, next_wired_history

GIB = 1 << 30
ENGINE = ("big", 7)


def play(*samples: tuple[float, int | None, dict[tuple[str, int], int]]) -> WiredHistory:
    history = WiredHistory()
    for at, wired, held in samples:
        history = next_wired_history(history, None if wired is None else wired * GIB, held, at)
    return history


def held(gib: int, name: str = "big", pid: int = 7) -> dict[tuple[str, int], int]:
    return {(name, pid): gib * GIB}


def test_memory_that_stays_wired_after_an_end_is_stranded_once_it_had_time_to_settle() -> None:
    early = play((0, 4, {}), (1, 34, held(30)), (2, 34, {}), (31, 34, {}))
    assert early.proven == ()
    late = play((0, 4, {}), (1, 34, held(30)), (2, 34, {}), (32, 34, {}))
    assert [(item.engine, item.held_bytes) for item in late.proven] == [("big", 30 * GIB)]


def test_memory_that_came_back_is_not() -> None:
    assert play((0, 4, {}), (1, 34, held(30)), (2, 34, {}), (4, 5, {}), (60, 5, {})).proven == ()


def test_an_engine_that_wired_nothing_leaves_nothing() -> None:
    assert play((0, 4, {}), (1, 4, held(30)), (2, 4, {}), (60, 4, {})).proven == ()


def test_what_a_living_engine_wires_is_not_anothers_remains() -> None:
    other = held(30, "other", 8)
    both = {**held(30), **other}
    assert play((0, 4, {}), (1, 34, both), (2, 34, other), (60, 34, other)).proven == ()


def test_what_another_app_wired_meanwhile_is_not_our_remains() -> None:
    assert play((0, 4, {}), (1, 54, held(30)), (2, 24, {}), (60, 24, {})).proven == ()


def test_stranding_is_forgiven_when_the_memory_comes_back_after_all() -> None:
    stuck = [(0.0, 4, {}), (1.0, 34, held(30)), (2.0, 34, {}), (40.0, 34, {})]
    assert play(*stuck).proven
    assert play(*stuck, (50.0, 5, {})).proven == ()


def test_a_restart_of_the_same_engine_is_a_new_process() -> None:
    again = held(30, pid=9)
    stuck = play((0, 4, {}), (1, 34, held(30)), (2, 64, again), (40, 64, again))
    assert [item.engine for item in stuck.proven] == ["big"]


def test_a_system_that_does_not_tell_wired_memory_proves_nothing() -> None:
    assert play((0, 4, {}), (1, 34, held(30)), (2, None, {}), (60, 34, {})).proven == ()
