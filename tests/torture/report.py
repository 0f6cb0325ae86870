"""The tables a run prints. Pure: a record in, text out."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from tests.torture.aftermath import Aftermath
from tests.torture.outcome import Kind, Outcome
from tests.torture.run import Record

MIB = 1 << 20
METRICS = (
    "mlxfleet_node_prefill_peak_ratio_max",
    "mlxfleet_node_prefill_learned_ratio",
    "mlxfleet_node_guard_actions_total",
    "mlxfleet_node_memory_admissions_total",
)


def render(record: Record, faults: Sequence[str]) -> str:
    """Return the whole report of one run."""
    plan = record.plan
    title = f"guard {'on' if plan.guard else 'off'}, seed {plan.seed}, {plan.clients} clients"
    parts = [f"== {title}, {record.seconds:.0f} s =="]
    parts += _requests(record.outcomes)
    parts += _times(record.outcomes)
    parts += _errors(record.outcomes)
    parts += _memory(record)
    parts += _turns(record)
    if record.aftermath is not None:
        parts += _aftermath(record.aftermath)
    parts.append("")
    if faults:
        counted = Counter(faults)
        parts.append(f"FAILED, {len(faults)} faults:")
        parts += [f"  {text}" + (f" (x{n})" if n > 1 else "") for text, n in counted.items()]
    else:
        parts.append("every promise held" if plan.guard else "the kernel killed, as it should")
    return "\n".join(parts)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return lines of a table: first column to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    return ["", *(_line(row, widths) for row in cells)]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.ljust(width) if at == 0 else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()


def _groups(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(f"{outcome.ask.model} {outcome.ask.size}", []).append(outcome)
    order = {"small": 0, "medium": 1, "large": 2, "huge": 3, "never": 4}
    return dict(
        sorted(found.items(), key=lambda pair: (pair[0].split()[0], order[pair[0].split()[1]]))
    )


def _requests(outcomes: Sequence[Outcome]) -> list[str]:
    head = ["requests", "all", *(kind.value for kind in Kind), "tokens"]
    rows: list[list[object]] = []
    for name, group in [*_groups(outcomes).items(), ("all", list(outcomes))]:
        counts = Counter(outcome.kind for outcome in group)
        sizes = [outcome.ask.prompt_tokens for outcome in group] or [0]
        span = f"{min(sizes)}-{max(sizes)}"
        rows.append([name, len(group), *(counts[kind] for kind in Kind), span])
    return table(head, rows)


def _times(outcomes: Sequence[Outcome]) -> list[str]:
    head = ["seconds", "first token p50", "p95", "whole answer p50", "p95"]
    rows = []
    for name, group in [*_groups(outcomes).items(), ("all", list(outcomes))]:
        answered = [item for item in group if item.kind is Kind.ANSWERED]
        firsts = [item.first_token_seconds for item in answered]
        rows.append(
            [
                name,
                *_percentiles([value for value in firsts if value is not None]),
                *_percentiles([item.seconds for item in answered]),
            ]
        )
    return table(head, rows)


def _percentiles(values: Sequence[float]) -> tuple[str, str]:
    if not values:
        return ("-", "-")
    if len(values) == 1:
        return (f"{values[0]:.2f}", f"{values[0]:.2f}")
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return (f"{cuts[49]:.2f}", f"{cuts[94]:.2f}")


def _errors(outcomes: Iterable[Outcome]) -> list[str]:
    counts = Counter(
        (
            "in-band" if item.kind is Kind.CUT else f"HTTP {item.status}",
            item.code or "?",
            item.retryable or "?",
            str(item.error.get("binding") or "-"),
        )
        for item in outcomes
        if item.error
    )
    rows = [[where, *rest, count] for (where, *rest), count in counts.most_common()]
    return table(["refusals", "code", "retryable", "binding", "count"], rows) if rows else []


def _memory(record: Record) -> list[str]:
    seen, plan = record.seen, record.plan
    ratios = seen.use_ratios or [0.0]
    limit = plan.limit_bytes
    rows: list[list[object]] = [
        ["limit of the cgroup", f"{limit / MIB:.0f} MiB", "the node's RAM"],
        _of_limit("peak held, without file cache", seen.peak_held_bytes, limit),
        _of_limit("peak anonymous", seen.peak_anonymous_bytes, limit),
        _of_limit("ceiling", seen.hard_bytes, limit),
        _of_limit("most used", seen.peak_used_bytes, limit),
        _of_limit("most used and promised", seen.peak_promised_bytes, limit),
        ["ceiling in use, mean", f"{statistics.fmean(ratios):.0%}", f"most {max(ratios):.0%}"],
        ["kernel kills", seen.kills, _kill_time(seen.first_kill_seconds)],
        ["engine restarts", sum(seen.restarts.values()), ""],
        ["pressure in load reports", "", ", ".join(f"{k} {n}" for k, n in seen.pressure.items())],
    ]
    return table(["memory", "", ""], rows)


def _of_limit(name: str, size: int, limit: int) -> list[object]:
    return [name, f"{size / MIB:.0f} MiB", f"{size / limit:.0%} of the limit"]


def _kill_time(seconds: float | None) -> str:
    return "" if seconds is None else f"first after {seconds:.1f} s"


def _turns(record: Record) -> list[str]:
    counts = Counter((turn.model, turn.what, turn.ended) for turn in record.turns)
    rows = []
    for (model, what, ended), count in sorted(counts.items()):
        took = [
            t.seconds for t in record.turns if (t.model, t.what, t.ended) == (model, what, ended)
        ]
        rows.append([model, what, ended, count, f"{statistics.median(took):.1f}"])
    return table(["models", "turn", "ended", "count", "median s"], rows) if rows else []


def _aftermath(after: Aftermath) -> list[str]:
    shrunk = sum(1 for doubt in after.doubts if doubt.fits_shrunk)
    false = sum(1 for doubt in after.doubts if doubt.false)
    well = sum(1 for _, again in after.retried if again.kind is Kind.ANSWERED)
    rows: list[list[object]] = [
        ['"never fits" looked at again', len(after.doubts)],
        ["  that fit the idle node", false],
        ["  that would fit in the smallest chunks", shrunk],
        ["refused, then asked alone", len(after.retried)],
        ["  answered in full", well],
        ["still promised when idle, bytes", after.leaked_bytes],
    ]
    lines = table(["afterwards", ""], rows)
    return lines + _foretold(after.metrics) + _metrics(after.metrics)


def _foretold(metrics: dict[str, float]) -> list[str]:
    """Return predicted and actual prefill peaks of each engine."""
    rows = []
    for name, count in sorted(metrics.items()):
        prefix = "mlxfleet_node_prefill_peak_ratio_count{"
        if not name.startswith(prefix) or not count:
            continue
        labels = name.removeprefix("mlxfleet_node_prefill_peak_ratio_count")
        means = [
            metrics.get(f"mlxfleet_node_prefill_peak_{what}_bytes_sum{labels}", 0.0) / count
            for what in ("predicted", "actual")
        ]
        ratio = metrics.get(f"mlxfleet_node_prefill_peak_ratio_sum{labels}", 0.0) / count
        most = metrics.get(f"mlxfleet_node_prefill_peak_ratio_max{labels}", 0.0)
        sizes = [f"{mean / MIB:.1f}" for mean in means]
        rows.append([labels, int(count), *sizes, f"{ratio:.2f}", f"{most:.2f}"])
    head = ["chunks", "count", "foretold MiB", "actual MiB", "actual/foretold", "most"]
    return table(head, rows) if rows else []


def _metrics(metrics: dict[str, float]) -> list[str]:
    rows = [
        [name, f"{value:g}"]
        for name, value in sorted(metrics.items())
        if name.partition("{")[0] in METRICS and value
    ]
    return table(["metrics", ""], rows) if rows else []
