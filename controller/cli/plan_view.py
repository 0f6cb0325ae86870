"""The plan as a person reads it: a verdict a model, a row a node. Pure."""

from controller.cli.output import align
from manifests.units import format_bytes
from manifests.wire.plan import Candidate, ModelPlan, PlanReport


def plan_lines(report: PlanReport, *, wide: bool = False) -> list[str]:
    """Return the lines of a plan; candidates that take a copy come first."""
    lines: list[str] = []
    for model in report.models:
        if lines:
            lines.append("")
        lines += _model_lines(model, wide=wide)
    return lines


def _model_lines(model: ModelPlan, *, wide: bool) -> list[str]:
    copies = "copy" if model.replicas == 1 else "copies"
    mark = "ok" if model.placed >= model.replicas else "!!"
    head = f"{mark}  model/{model.model}: {model.placed} of {model.replicas} {copies} placed"
    if model.nodes:
        head += " on " + ", ".join(model.nodes)
    lines = [head]
    if model.message:
        lines.append(f"    {model.message}")
    if not model.candidates:
        return lines
    header = ["NODE", "VERDICT", "NEEDED", "WEIGHTS", "CONTEXT", "AVAILABLE", "CEILING", "BINDING"]
    if wide:
        header += ["PLACED"]
    order = sorted(model.candidates, key=lambda c: (not c.chosen, not c.fits, c.node))
    rows = [_row(candidate, wide=wide) for candidate in order]
    lines += ["    " + line for line in align(header, rows)]
    lines += [f"      {c.node}: {c.message}" for c in order if not c.fits and c.message]
    return lines


def _row(candidate: Candidate, *, wide: bool) -> list[str]:
    verdict = "takes it" if candidate.chosen else ("would fit" if candidate.fits else "no")
    if not candidate.fits and candidate.reason:
        verdict = f"no: {candidate.reason}"
    row = [
        candidate.node,
        verdict,
        format_bytes(candidate.needed_bytes) if candidate.needed_bytes else "-",
        format_bytes(candidate.weights_bytes) if candidate.weights_bytes else "-",
        format_bytes(candidate.context_bytes) if candidate.context_bytes else "-",
        format_bytes(candidate.available_bytes),
        format_bytes(candidate.ceiling_bytes),
        candidate.binding.value if candidate.binding else "-",
    ]
    return [*row, format_bytes(candidate.placed_bytes)] if wide else row
