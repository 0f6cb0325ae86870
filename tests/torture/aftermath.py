"""What is asked of the idle node once the clients are gone: was every refusal right?

Takes back promises that never end, checks each "never fits" with the estimator and asks a sample
of what was refused once more, alone. Units: bytes, seconds.
"""

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from manifests.errors import Retryable
from manifests.sizing.estimate import PrefillCase, estimate_prefill
from manifests.wire.report import LoadReport
from tests.torture.client import Doors, fire
from tests.torture.mix import Ask
from tests.torture.outcome import BUSY, MEMORY, Kind, Outcome
from tests.torture.stage import MODELS, shape_of
from tests.torture.watch import Seen

QUIET_SECONDS = 30.0
MIN_CHUNK_TOKENS = 32
# A retry speaks against a node that lied, not against one that is slow here: on two cores a
# prompt of 7,000 tokens takes SmolLM2 minutes.
RETRY_TOKENS = 16_000
RETRY_TOKENS_OF = {"smollm2": 3_000}


@dataclass(frozen=True, slots=True)
class Doubt:
    """A "never fits" looked at again: the need at the engine's chunk and at the smallest one."""

    outcome: Outcome
    need_bytes: int
    least_bytes: int
    room_bytes: int

    @property
    def false(self) -> bool:
        """Whether the prompt fits the idle node as it is declared."""
        return self.need_bytes <= self.room_bytes

    @property
    def fits_shrunk(self) -> bool:
        """Whether it would fit if fed in the smallest chunks."""
        return self.least_bytes <= self.room_bytes


@dataclass(frozen=True, slots=True)
class Aftermath:
    """`leaked_bytes` were still promised when nobody asked any more."""

    leaked_bytes: int
    doubts: tuple[Doubt, ...]
    retried: tuple[tuple[Outcome, Outcome], ...]
    metrics: dict[str, float]


async def wait_quiet(seen: Seen, seconds: float = QUIET_SECONDS) -> LoadReport | None:
    """Return the first report of a node where nothing runs, or the last one in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        report = seen.last_report
        if report is not None and report.reserved_bytes == 0 and _idle(report):
            return report
        await asyncio.sleep(0.1)
    return seen.last_report


def _idle(report: LoadReport) -> bool:
    return all(engine.running + engine.waiting == 0 for engine in report.engines)


async def fetch_metrics(session: aiohttp.ClientSession, agent_url: str) -> dict[str, float]:
    """Return the agent's samples by name and labels, as `name{a="b"}`."""
    async with session.get(agent_url + "/metrics") as reply:
        text = await reply.text()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def check_refusals(
    outcomes: Iterable[Outcome], report: LoadReport, footprints: dict[str, int], margin_bytes: int
) -> tuple[Doubt, ...]:
    """Return every "never fits" with what the estimator says of it. Pure but for model files."""
    doubts = []
    for outcome in outcomes:
        if outcome.code != MEMORY or outcome.retryable != Retryable.NO.value:
            continue
        model = outcome.ask.model
        room = report.ceilings.abort_bytes - margin_bytes - footprints.get(model, 0)
        need = _need_bytes(outcome.ask, MODELS[model].chunk_tokens)
        least = _need_bytes(outcome.ask, MIN_CHUNK_TOKENS)
        doubts.append(Doubt(outcome, need, least, room))
    return tuple(doubts)


def _need_bytes(ask: Ask, chunk_tokens: int) -> int:
    """Return what the request takes when its rows are fed one after the other, as engines do."""
    case = PrefillCase(
        prompt_tokens=ask.prompt_tokens, max_tokens=ask.max_tokens, chunk_tokens=chunk_tokens
    )
    one = estimate_prefill(shape_of(ask.model), case)
    return one.peak_bytes + (ask.rows - 1) * one.kv_bytes


def footprints_of(report: LoadReport, metrics: dict[str, float]) -> dict[str, int]:
    """Return what each model's engine holds; the smallest where there are several."""
    found: dict[str, int] = {}
    for engine in report.engines:
        size = metrics.get(f'mlxfleet_node_engine_footprint_bytes{{engine="{engine.name}"}}')
        if size is not None:
            found[engine.model] = min(int(size), found.get(engine.model, int(size)))
    return found


def pick_retries(
    outcomes: Sequence[Outcome], present: set[str], count: int, rng: random.Random
) -> list[Outcome]:
    """Return refused requests to ask again: those that only lost against others. Largest first."""
    fair = [
        item
        for item in outcomes
        if item.kind in {Kind.REFUSED, Kind.CUT}
        and item.code in {MEMORY} | BUSY
        and item.retryable != Retryable.NO.value
        and item.ask.model in present
        and _affordable(item.ask)
    ]
    fair.sort(key=lambda item: -item.ask.prompt_tokens)
    head, rest = fair[: count // 2], fair[count // 2 :]
    return head + rng.sample(rest, min(len(rest), count - len(head)))


def _affordable(ask: Ask) -> bool:
    return ask.rows * ask.prompt_tokens <= RETRY_TOKENS_OF.get(ask.model, RETRY_TOKENS)


async def retry_alone(
    session: aiohttp.ClientSession, doors: Doors, refused: Iterable[Outcome], seen: Seen
) -> tuple[tuple[Outcome, Outcome], ...]:
    """Ask each again on the otherwise idle node; the first ending and the new one."""
    pairs = []
    for outcome in refused:
        await wait_quiet(seen)
        ask = replace(outcome.ask, leave_after_seconds=None)
        pairs.append((outcome, await fire(session, doors, ask)))
    return tuple(pairs)
