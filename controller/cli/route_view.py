"""An explanation as a person reads it: the verdict, then a row an engine. Pure."""

from controller.cli.output import align
from manifests.units import format_bytes
from manifests.wire.explain import RouteCandidate, RouteExplanation

_OUTCOMES = {
    "wait": "would wait at the gateway: nobody has room now",
    "never": "would be refused (413): no node can ever hold it",
    "nobody": "would be refused (503): no engine takes requests now",
}


def explanation_lines(told: RouteExplanation, *, wide: bool = False) -> list[str]:
    """Return the lines of an explanation."""
    counted = "" if told.exact else "about "
    size = f"{counted}{told.prompt_tokens} prompt tokens, up to {told.output_tokens} more"
    if told.outcome == "send":
        verdict = f"would go to {told.node}/{told.engine} ({told.why.replace('_', ' ')})"
    else:
        verdict = _OUTCOMES.get(told.outcome, told.outcome)
    lines = [f"model/{told.model}: {size}", f"  {verdict}"]
    if told.message:
        lines.append(f"  {told.message}")
    if not told.candidates:
        return lines
    header = ["NODE", "ENGINE", "VERDICT", "NEED", "HAVE", "EVER", "CACHED", "SECONDS"]
    if wide:
        header += ["QUEUE", "PREFILL", "RESTORE", "DECODE", "WAKE", "PENALTY"]
    rows = [_row(item, wide=wide) for item in told.candidates]
    return [*lines, *("    " + line for line in align(header, rows))]


def _row(item: RouteCandidate, *, wide: bool) -> list[str]:
    seconds = item.seconds
    sizes = [item.need_bytes, item.have_bytes, item.ever_bytes]
    row = [
        item.node,
        item.engine,
        item.excluded.replace("_", " ") or "takes it",
        *(format_bytes(size) if item.known else "-" for size in sizes),
        str(item.cached_tokens),
        "-" if seconds is None else f"{seconds.total:.2f}",
    ]
    if not wide:
        return row
    if seconds is None:
        return [*row, *["-"] * 6]
    parts = (
        seconds.queue,
        seconds.prefill,
        seconds.restore,
        seconds.decode,
        seconds.wake,
        seconds.penalty,
    )
    return [*row, *(f"{part:.2f}" for part in parts)]
