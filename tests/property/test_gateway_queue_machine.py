"""The gateway's line: bounded, nobody lost, nobody starved, keys share by tokens."""

import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.gateway.choice.queue_plan import Line, Ticket, enter, leave, order, serve

MOST_WAITING = 12
MOST_TOKENS = 1000
TENANTS = ("", "a", "b", "c")
PRIORITIES = (-1, 0, 1)


class QueueMachine(RuleBasedStateMachine):
    """`passed` counts, for each that waits, the tokens of its own priority served before it."""

    def __init__(self) -> None:
        super().__init__()
        self.line = Line()
        self.number = 0
        self.inside: dict[int, Ticket] = {}
        self.passed: Counter[int] = Counter()
        # Tokens served to each pair of keys since both have waited without a break.
        self.race: dict[tuple[int, str, str], int] = {}

    @rule(
        priority=st.sampled_from(PRIORITIES),
        tenant=st.sampled_from(TENANTS),
        tokens=st.integers(1, MOST_TOKENS),
    )
    def come(self, priority: int, tenant: str, tokens: int) -> None:
        self.number += 1
        ticket = Ticket(self.number, priority, tenant, tokens)
        line = enter(self.line, ticket, MOST_WAITING)
        assert (line is None) == (len(self.inside) >= MOST_WAITING)
        if line is not None:
            self.line = line
            self.inside[self.number] = ticket

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.inside)))
        self.line = leave(self.line, number)
        del self.inside[number]

    @precondition(lambda self: self.inside)
    @rule()
    def serve_next(self) -> None:
        first = order(self.line)[0]
        assert first.priority == max(item.priority for item in self.inside.values())
        own = [item for item in self.inside.values() if item.flow == first.flow]
        assert first.number == min(item.number for item in own)
        self.line = serve(self.line, first.number)
        del self.inside[first.number]
        for item in self.inside.values():
            if item.priority == first.priority:
                self.passed[item.number] += first.tokens
        self.note_race(first)

    def note_race(self, first: Ticket) -> None:
        for other in TENANTS:
            if other == first.tenant:
                continue
            low, high = sorted((first.tenant, other))
            key = (first.priority, low, high)
            gain = first.tokens if first.tenant == low else -first.tokens
            if key in self.race:
                self.race[key] += gain

    @invariant()
    def the_line_holds_exactly_those_who_wait(self) -> None:
        assert {item.number: item for item in self.line.waiting} == self.inside
        assert sorted(item.number for item in order(self.line)) == sorted(self.inside)

    @invariant()
    def what_is_remembered_is_bounded(self) -> None:
        if not self.inside:
            assert self.line == Line()
        assert len(self.line.given) <= len(PRIORITIES) * len(TENANTS)

    @invariant()
    def nobody_of_one_priority_is_passed_for_ever(self) -> None:
        # Everybody inside may go first, each key once more by its largest request.
        for number in self.inside:
            assert self.passed[number] <= (MOST_WAITING + 2 * len(TENANTS)) * MOST_TOKENS

    @invariant()
    def keys_that_both_wait_are_served_alike(self) -> None:
        waiting = {item.flow for item in self.inside.values()}
        for priority in PRIORITIES:
            for index, one in enumerate(sorted(TENANTS)):
                for two in sorted(TENANTS)[index + 1 :]:
                    key = (priority, one, two)
                    if {(priority, one), (priority, two)} <= waiting:
                        # Each may be one request ahead, when they met and now.
                        assert abs(self.race.setdefault(key, 0)) <= 2 * MOST_TOKENS
                    else:
                        self.race.pop(key, None)


QueueMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
TestQueue = QueueMachine.TestCase


def test_a_key_that_asks_much_cannot_keep_out_one_that_asks_little() -> None:
    line = Line()
    for number in range(10):
        line = enter(line, Ticket(number, 0, "greedy", 100), 100) or line
    line = enter(line, Ticket(10, 0, "modest", 100), 100) or line
    assert [item.number for item in order(line)][:3] == [0, 10, 1]


@given(st.lists(st.integers(1, MOST_TOKENS), min_size=2, max_size=3), st.integers(20, 120))
def test_keys_that_always_wait_get_the_same_tokens_to_one_request(
    sizes: list[int], rounds: int
) -> None:
    line, served = Line(), Counter[str]()
    numbers = itertools.count()

    def come(key: int) -> None:
        nonlocal line
        entered = enter(line, Ticket(next(numbers), 0, str(key), sizes[key]), MOST_WAITING)
        assert entered is not None
        line = entered

    for key in range(len(sizes)):
        come(key)
        come(key)
    for _ in range(rounds):
        first = order(line)[0]
        line = serve(line, first.number)
        served[first.tenant] += first.tokens
        come(int(first.tenant))
    figures = [served[str(key)] for key in range(len(sizes))]
    assert max(figures) - min(figures) <= max(sizes)


def test_a_stream_of_new_keys_cannot_starve_one_that_was_served_before() -> None:
    line = enter(Line(), Ticket(0, 0, "old", 1000), 100)
    assert line is not None
    line = enter(line, Ticket(1, 0, "old", 1000), 100)
    assert line is not None
    line = serve(line, 0)
    for number in range(2, 100):
        line = enter(line, Ticket(number, 0, f"new-{number}", 1000), 100)
        assert line is not None
        first = order(line)[0]
        if first.tenant == "old":
            return
        line = serve(line, first.number)
    raise AssertionError("starved")


def test_a_higher_priority_goes_first() -> None:
    line = enter(Line(), Ticket(0, 0, "a", 1), 9)
    assert line is not None
    line = enter(line, Ticket(1, 5, "b", 9), 9)
    assert line is not None
    assert [item.number for item in order(line)] == [1, 0]
