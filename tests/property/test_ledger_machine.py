"""The ledger under every order of events: never over-committed, everything released."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from node_agent.memory.ledger import Ledger

CEILING = 1000
ENGINES = ("a", "b")


class LedgerMachine(RuleBasedStateMachine):
    """Engines whose requests allocate up to what they were promised, in any order.

    The model knows whose memory is whose; the ledger sees each engine's total only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.resident = dict.fromkeys(ENGINES, 50)
        self.live: dict[int, tuple[str, int, int]] = {}

    def used(self) -> dict[str, int]:
        held = dict(self.resident)
        for engine, _, grown in self.live.values():
            held[engine] += grown
        return held

    def still_to_come(self) -> int:
        return sum(amount - grown for _, amount, grown in self.live.values())

    @rule(
        engine=st.sampled_from(ENGINES),
        amount=st.one_of(st.integers(0, 600), st.sampled_from((50, 100))),
    )
    def ask(self, engine: str, amount: int) -> None:
        headroom = self.ledger.headroom_bytes(CEILING, self.used())
        number = self.ledger.reserve(engine, amount, CEILING, self.used())
        assert (number is not None) == (amount <= headroom)
        if number is not None:
            assert number not in self.live
            self.live[number] = (engine, amount, 0)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.live)))
        engine, amount, grown = self.live[number]
        share = data.draw(st.sampled_from((1.0, 0.5)))
        self.live[number] = (engine, amount, grown + int((amount - grown) * share))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), keeps=st.booleans())
    def finish(self, data: st.DataObject, keeps: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.live)))
        # The engine's total is read while the request's memory is still there.
        assert self.ledger.release(number, self.used())
        engine, _, grown = self.live.pop(number)
        if keeps:
            self.resident[engine] += grown
        assert not self.ledger.release(number, self.used())

    @rule(engine=st.sampled_from(ENGINES), share=st.floats(0, 1))
    def drop_caches(self, engine: str, share: float) -> None:
        self.resident[engine] = 50 + int((self.resident[engine] - 50) * share)

    @invariant()
    def what_is_held_and_still_to_come_fits(self) -> None:
        assert sum(self.used().values()) + self.still_to_come() <= CEILING

    @invariant()
    def reserved_covers_what_is_still_to_come(self) -> None:
        assert self.ledger.reserved_bytes(self.used()) >= self.still_to_come()

    def teardown(self) -> None:
        for number in list(self.live):
            assert self.ledger.release(number, self.used())
        assert len(self.ledger) == 0
        assert self.ledger.reserved_bytes(self.used()) == 0


LedgerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestLedger = LedgerMachine.TestCase
