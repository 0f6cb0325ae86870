"""What must hold of a run. Pure: a record in, sentences about what does not hold out."""

from collections.abc import Iterator

from tests.torture.churn import HELD_BACK
from tests.torture.outcome import MEMORY, Kind, judge_error
from tests.torture.run import Record

# Fewer answers than one in so many seconds would prove nothing.
SECONDS_FOR_AN_ANSWER = 10.0
# A load that waits for memory is no fault of its engine.
WAITS_FOR_MEMORY = "InsufficientMemory"


def find_faults(record: Record) -> list[str]:
    """Return every broken promise, or why the run proves nothing."""
    if not record.plan.guard:
        return list(_unguarded(record))
    return [
        *_kernel(record),
        *_answers(record),
        *_models(record),
        *_refusals(record),
        *_worth(record),
    ]


def _unguarded(record: Record) -> Iterator[str]:
    if record.seen.kills == 0:
        yield "without the guard the kernel killed nothing, so the run with it proves nothing"


def _kernel(record: Record) -> Iterator[str]:
    seen = record.seen
    if seen.kills:
        yield f"the kernel killed {seen.kills} processes for memory"
    for engine, restarts in sorted(seen.restarts.items()):
        if restarts:
            yield f"engine {engine} was restarted {restarts} times"
    for engine, why in sorted(seen.failures):
        if not why.startswith(WAITS_FOR_MEMORY):
            yield f"engine {engine} failed: {why}"


def _answers(record: Record) -> Iterator[str]:
    for outcome in record.outcomes:
        what = f"{outcome.ask.model} {outcome.ask.prompt_tokens} tokens"
        if outcome.kind is Kind.BROKEN:
            yield f"broken answer ({what}, after {outcome.seconds:.1f} s): {outcome.detail}"
        elif outcome.error:
            goes = outcome.ask.model in record.plan.comes_and_goes
            wrong = judge_error(outcome, comes_and_goes=goes)
            if wrong:
                yield f"bad refusal ({what}, HTTP {outcome.status}): {wrong}"


def _models(record: Record) -> Iterator[str]:
    for turn in record.turns:
        if turn.ended not in {"ready", "gone"} and not turn.ended.startswith(HELD_BACK):
            yield f"the {turn.what} of {turn.model} ended as {turn.ended}"
        elif turn.idle and turn.ended.startswith(HELD_BACK):
            yield f"{turn.model} was {turn.ended} although no client asked anything"


def _refusals(record: Record) -> Iterator[str]:
    after = record.aftermath
    if after is None:
        yield "the node was not asked for its refusals"
        return
    if after.leaked_bytes:
        yield f"{after.leaked_bytes} bytes stay promised although nothing runs"
    for doubt in after.doubts:
        if doubt.false:
            ask = doubt.outcome.ask
            yield (
                f"false refusal: {ask.model} {ask.rows} x {ask.prompt_tokens}+{ask.max_tokens} "
                f"tokens (said to need {doubt.outcome.error.get('estimated_bytes')}) need "
                f"{doubt.need_bytes} bytes, {doubt.room_bytes} are there when idle"
            )
    for first, again in after.retried:
        if again.kind is not Kind.ANSWERED:
            ask = first.ask
            yield (
                f"refused as {first.code}/{first.retryable}, and alone again "
                f"{again.code or again.detail}/{again.retryable}: {ask.model} "
                f"{ask.prompt_tokens}+{ask.max_tokens} tokens: {again.error.get('message')}"
            )


def _worth(record: Record) -> Iterator[str]:
    answered = sum(1 for item in record.outcomes if item.kind is Kind.ANSWERED)
    least = record.plan.seconds / SECONDS_FOR_AN_ANSWER
    if answered < least:
        yield f"only {answered} answers came in {record.seconds:.0f} s; too few to prove anything"
    pushed = any(item.code in {MEMORY, "queue_full"} for item in record.outcomes)
    admissions = {} if record.aftermath is None else record.aftermath.metrics
    waited = any(
        "memory_admissions" in k and "admitted" not in k and v for k, v in admissions.items()
    )
    full = max(record.seen.use_ratios, default=0.0) > 0.8
    if not (pushed or waited or full):
        yield "nothing was ever refused and the node never came near its ceiling; raise the load"
