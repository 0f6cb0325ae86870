from controller.reconcile.leases import (
    Lease,
    LeaseBook,
    LeaseRules,
    NodeHealth,
    advance_leases,
    judge_nodes,
)

RULES = LeaseRules(missed_leases=3, grace_seconds=60, tick_seconds=1)


class Watcher:
    """Ticks once a second; `alive` nodes renew every tick, others keep their last lease."""

    def __init__(self, *names: str) -> None:
        self.book = LeaseBook()
        self.now = 1000.0
        self.values = dict.fromkeys(names, 0)

    def tick(self, *alive: str, gap: float = 1.0, listening: bool = True) -> None:
        self.now += gap
        for name in alive:
            self.values[name] += 1
        leases = {name: Lease(str(value), 10.0) for name, value in self.values.items()}
        self.book = advance_leases(self.book, leases, self.now, listening=listening, rules=RULES)

    def run(self, seconds: int, *alive: str) -> None:
        for _ in range(seconds):
            self.tick(*alive)

    def health(self) -> dict[str, str]:
        return {name: str(value) for name, value in sorted(judge_nodes(self.book, RULES).items())}


def test_a_node_is_unproven_until_its_lease_is_seen_to_change() -> None:
    watch = Watcher("a", "b")
    watch.tick()
    assert watch.health() == {"a": "unproven", "b": "unproven"}
    watch.tick("a")
    assert watch.health() == {"a": "fresh", "b": "unproven"}


def test_a_silent_node_expires_after_three_leases_and_is_lost_after_the_grace() -> None:
    watch = Watcher("a", "b", "c")
    watch.run(2, "a", "b", "c")
    watch.run(29, "b", "c")
    assert watch.health()["a"] == "fresh"
    watch.run(1, "b", "c")
    assert watch.health()["a"] == "expired"
    watch.run(59, "b", "c")
    assert watch.health()["a"] == "expired"
    watch.run(1, "b", "c")
    assert watch.health() == {"a": "lost", "b": "fresh", "c": "fresh"}
    watch.run(1, "a", "b", "c")
    assert watch.health()["a"] == "fresh"


def test_a_paused_controller_holds_no_node_for_dead() -> None:
    watch = Watcher("a", "b")
    watch.run(5, "a", "b")
    watch.tick(gap=3600.0)
    assert watch.health() == {"a": "fresh", "b": "fresh"}


def test_time_without_the_store_does_not_count() -> None:
    watch = Watcher("a", "b")
    watch.run(5, "a", "b")
    for _ in range(500):
        watch.tick(listening=False)
    assert watch.health() == {"a": "fresh", "b": "fresh"}


def test_a_restarted_controller_gives_every_node_the_full_time() -> None:
    watch = Watcher("dead")
    watch.run(30)
    assert watch.health() == {"dead": "unproven"}
    watch.run(1)
    assert watch.health() == {"dead": "expired"}


def test_when_all_nodes_fall_silent_only_half_are_given_up_at_once() -> None:
    watch = Watcher("a", "b", "c", "d")
    watch.run(2, "a", "b", "c", "d")
    watch.run(30 + 60)
    assert watch.health() == {"a": "lost", "b": "lost", "c": "expired", "d": "expired"}
    watch.run(60)
    assert set(watch.health().values()) == {"lost"}


def test_a_clock_that_runs_wild_on_the_node_changes_nothing() -> None:
    book = LeaseBook()
    for second in range(200):
        lease = Lease(f"1970-01-01T00:00:0{second % 7}Z", 10.0)
        book = advance_leases(book, {"a": lease}, 50.0 + second, listening=True, rules=RULES)
    assert judge_nodes(book, RULES) == {"a": NodeHealth.FRESH}


def test_a_node_that_is_deleted_leaves_the_book() -> None:
    watch = Watcher("a", "b")
    watch.run(2, "a", "b")
    del watch.values["a"]
    watch.run(1, "b")
    assert watch.health() == {"b": "fresh"}
