"""What the figures of all servers say: the ratio to the best peer, and whether a target is met.

Pure: figures in, lines out. Called by peers.py.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

MORE: Literal["more"] = "more"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    `key` names the figure, or `key` over `over`. Against the best peer ours is at least (`more`)
    or at most (`less`) `against_best` times its figure; `at_most` is a limit on our own figure.
    A row that only informs (`better` is empty) is not compared.
    """

    label: str
    key: str
    unit: str = "s"
    over: str = ""
    better: Literal["more", "less", ""] = "less"
    against_best: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A row's figures by server, and what they say; `met` is None when nothing can be said."""

    row: Row
    figures: Mapping[str, float]
    best_peer: str
    ratio: float | None
    met: bool | None


def read_figure(row: Row, passes: Sequence[Mapping[str, float]]) -> float | None:
    """Return what a row shows of one server's passes, or None when it is not there.

    The best pass, since other work on the machine only makes figures worse; of one figure over
    another the median, since other work may make either worse.
    """
    values = [figures[row.key] for figures in passes if row.key in figures]
    if row.over:
        both = [figures for figures in passes if row.key in figures and figures.get(row.over)]
        values = [figures[row.key] / figures[row.over] for figures in both]
        return statistics.median(values) if values else None
    return _best_of(row)(values) if values else None


def judge(row: Row, measured: Mapping[str, Sequence[Mapping[str, float]]], ours: str) -> Verdict:
    """Compare our figure of a row with the best peer's and with its limit.

    A target is missed when ours was wanted but gave no figure.
    """
    found = {name: read_figure(row, passes) for name, passes in measured.items()}
    known = {name: value for name, value in found.items() if value is not None}
    peers = {name: value for name, value in known.items() if name != ours}
    best = ""
    if peers and row.better:
        best = _best_of(row)(peers, key=lambda name: peers[name])
    mine = known.get(ours)
    ratio = mine / peers[best] if mine is not None and best and peers[best] else None
    return Verdict(row, known, best, ratio, _decide(row, ours in measured, mine, ratio))


def _best_of(row: Row) -> Any:
    return max if row.better == MORE else min


def _decide(row: Row, wanted: bool, mine: float | None, ratio: float | None) -> bool | None:
    if not wanted or (row.against_best is None and row.at_most is None):
        return None
    if mine is None:
        return False
    if row.at_most is not None and mine > row.at_most:
        return False
    if row.against_best is None:
        return True
    if ratio is None:
        return None if row.at_most is None else True
    return ratio >= row.against_best if row.better == MORE else ratio <= row.against_best


def describe_target(row: Row) -> str:
    """Say a row's target in a few characters."""
    sign = ">=" if row.better == MORE else "<="
    parts = [] if row.at_most is None else [f"<= {row.at_most:g} {row.unit}".rstrip()]
    parts += [] if row.against_best is None else [f"{sign} {row.against_best:g} x best"]
    return ", ".join(parts)


def format_table(verdicts: Sequence[Verdict], servers: Sequence[str]) -> list[str]:
    """Return a part's table: a column for each server, then ratio, target and whether it is met."""
    head = ["", *servers, "best peer", "ours/best", "target", "met"]
    rows = [[_label(verdict.row), *_cells(verdict, servers)] for verdict in verdicts]
    widths = [max(len(line[column]) for line in [head, *rows]) for column in range(len(head))]
    return [_align(line, widths) for line in [head, *rows]]


def _label(row: Row) -> str:
    return f"{row.label}, {row.unit}" if row.unit else row.label


def _cells(verdict: Verdict, servers: Sequence[str]) -> list[str]:
    figures = [verdict.figures.get(name) for name in servers]
    met = {True: "yes", False: "NO", None: ""}[verdict.met]
    ratio = "" if verdict.ratio is None else f"{verdict.ratio:.2f}"
    shown = ["-" if figure is None else format_figure(figure) for figure in figures]
    return [*shown, verdict.best_peer, ratio, describe_target(verdict.row), met]


def warn_of_other_work(busy: Mapping[str, float], most_ratio: float) -> str:
    """Say whose figures other work on the machine has spoilt; nothing when none are."""
    spoilt = [f"{name} {ratio:.0%}" for name, ratio in busy.items() if ratio > most_ratio]
    if not spoilt:
        return ""
    return f"not comparable, other work had part of the machine: {', '.join(spoilt)}"


def format_figure(figure: float) -> str:
    """Write a figure with three digits that say something."""
    if abs(figure) >= 100:
        return f"{figure:.0f}"
    return f"{figure:.1f}" if abs(figure) >= 10 else f"{figure:.3f}"


def _align(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return "  ".join([first, *rest]).rstrip()
