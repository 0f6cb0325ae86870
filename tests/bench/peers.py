"""mlxfleet beside other MLX servers, same model, same machine, same run: `python -m
tests.bench.peers`.

Runs one server at a time through each part and prints a table a part: tokens a second at
several concurrencies (serve), conversations that share a system prompt and a long prompt beside
running streams (agents), and repeated prompts before and after a restart (prefix). All texts
are seeded by the clock. OpenBLAS is preloaded for all. Peers that are not installed are named.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from node_agent.host.blas import find_openblas
from tests.bench import decode_overhead
from tests.bench.peer_clients import RequestFailed
from tests.bench.peer_loads import (
    QUICK,
    Figures,
    Load,
    Sizes,
    await_answer,
    load_agents,
    load_prefix,
    load_serve,
    load_stall,
)
from tests.bench.peer_machine import busy_elsewhere_ratio, observe_work
from tests.bench.peer_servers import (
    OURS,
    PEERS,
    Server,
    build_servers,
    explain_missing,
    find_program,
)
from tests.bench.peer_verdicts import MORE, Row, Verdict, format_table, judge, warn_of_other_work
from tests.support.fleet import SMOLLM2

START_SECONDS = 180.0

PARTS = ("serve", "agents", "prefix")
OVERHEAD_ROWS = (1, 8)
BUSY = Row("machine busy with other work", "elsewhere_ratio", unit="", better="")
MOST_OTHER_WORK = 0.1
AGENTS_ROWS = (
    Row("wall", "wall", against_best=0.7),
    Row("TTFT p50", "ttft_p50", against_best=0.5),
    Row("TTFT p95", "ttft_p95", against_best=0.5),
    Row("gap p95", "gap_p95"),
    Row("prompts from the cache", "cached_ratio", unit="", better=""),
    Row("worst gap beside a long prompt", "worst_gap", at_most=1.0),
    Row("TTFT of the long prompt", "long_ttft", against_best=1.0),
    Row("long prompt", "long_prompt_tokens", unit="tokens", better=""),
    BUSY,
)
PREFIX_ROWS = (
    Row("cold", "restart_cold"),
    Row("after a restart", "restart_back"),
    Row("after a restart / cold", "restart_back", unit="", over="restart_cold", at_most=0.05),
    Row("prompt", "restart_prompt_tokens", unit="tokens", better=""),
    Row("of it from the cache", "restart_cached_tokens", unit="tokens", better=""),
    Row("same text (1 = yes)", "same_text", unit="", better=""),
    Row("longer prompt, cold", "repeat_cold"),
    Row("with another ending", "repeat_second"),
    Row("with a third ending", "repeat_third"),
    Row("another ending / cold", "repeat_second", unit="", over="repeat_cold", at_most=0.03),
    Row("longer prompt", "repeat_prompt_tokens", unit="tokens", better=""),
    Row("of it from the cache", "repeat_cached_tokens", unit="tokens", better=""),
    BUSY,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run: servers by name with their program, and how much is asked of them."""

    programs: Mapping[str, Path | None]
    model: Path
    sizes: Sizes
    seed: int
    passes: int


def serve_rows(sizes: Sizes) -> tuple[Row, ...]:
    """Return the serve part's rows: tokens and TTFT for each concurrency, and our overhead."""
    counts = [at_once for at_once, _ in sizes.rounds]
    return (
        *(Row(f"output at {n}", f"tok_s_{n}", "tok/s", "", MORE, 1.1) for n in counts),
        *(Row(f"TTFT p50 at {n}", f"ttft_p50_{n}") for n in counts),
        Row("prompt", "prompt_tokens", unit="tokens", better=""),
        *(
            Row(f"own time / model's, step of {n}", f"overhead_{n}", unit="", at_most=0.05)
            for n in OVERHEAD_ROWS
        ),
        BUSY,
    )


def measure_part(part: str, server: Server, plan: Plan) -> Figures:
    """Start a server, send a part's work and end the server; without figures when it fails."""
    before = observe_work()
    try:
        server.start()
        load = Load(server.endpoint, plan.sizes, plan.seed)
        figures = asyncio.run(_send_part(part, server, load))
        figures["elsewhere_ratio"] = busy_elsewhere_ratio(before, observe_work())
    except (RequestFailed, AssertionError, OSError) as fault:
        print(f"  failed: {fault}\n{server.log()}", flush=True)
        return {}
    else:
        return figures
    finally:
        server.stop()


async def _send_part(part: str, server: Server, load: Load) -> Figures:
    await await_answer(load.endpoint, server.is_alive, START_SECONDS)
    if part == "serve":
        return await load_serve(load)
    if part == "agents":
        return await load_agents(load) | await load_stall(load)

    async def restart() -> None:
        await asyncio.to_thread(server.restart)
        await await_answer(load.endpoint, server.is_alive, START_SECONDS)

    return await load_prefix(load, restart)


def measure_overhead() -> Figures:
    """Return what our engine's own work adds to a decode step, as a part of the model's time."""
    found = {rows: decode_overhead.measure(rows) for rows in OVERHEAD_ROWS}
    return {f"overhead_{rows}": own / model for rows, (model, own) in found.items()}


def run_part(part: str, plan: Plan, directory: Path) -> list[Verdict]:
    """Run one part on each server in turn, print its table, and return its verdicts."""
    print(f"\n-- {part}", flush=True)
    measured: dict[str, list[Figures]] = {}
    for turn in range(plan.passes):
        servers = build_servers(plan.programs, plan.model, directory / str(turn))
        for name, server in servers.items():
            started = time.monotonic()
            figures = measure_part(part, server, plan)
            measured.setdefault(name, []).append(figures)
            print(f"  {name}: {time.monotonic() - started:.0f} s", flush=True)
    if part == "serve" and OURS in measured:
        measured[OURS].append(measure_overhead())
    rows_of = {"serve": serve_rows(plan.sizes), "agents": AGENTS_ROWS, "prefix": PREFIX_ROWS}
    verdicts = [judge(row, measured, OURS) for row in rows_of[part]]
    print("\n".join(format_table(verdicts, list(measured))))
    busy = next(verdict.figures for verdict in verdicts if verdict.row is BUSY)
    print(warn_of_other_work(busy, MOST_OTHER_WORK), flush=True)
    return verdicts


def find_programs(names: Sequence[str]) -> dict[str, Path | None]:
    """Return the program of each named server that is here, ours first; say what is missing."""
    programs: dict[str, Path | None] = {OURS: None} if OURS in names else {}
    for peer in PEERS:
        program = find_program(peer, os.environ)
        if program is None:
            print(explain_missing(peer))
        elif peer.name in names:
            programs[peer.name] = program
    return programs


def save(path: Path, plan: Plan, verdicts: Mapping[str, Sequence[Verdict]]) -> None:
    """Write all figures to a file."""
    found = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seed": plan.seed,
        "passes": plan.passes,
        "sizes": asdict(plan.sizes),
        "parts": {
            part: [
                {
                    "row": verdict.row.label,
                    "unit": verdict.row.unit,
                    "figures": dict(verdict.figures),
                    "ratio_to_best_peer": verdict.ratio,
                    "met": verdict.met,
                }
                for verdict in rows
            ]
            for part, rows in verdicts.items()
        },
    }
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    names = [OURS, *(peer.name for peer in PEERS)]
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows only that it runs")
    parser.add_argument("--servers", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS, metavar="PART")
    parser.add_argument("--model", type=Path, default=SMOLLM2, metavar="DIRECTORY")
    parser.add_argument("--passes", type=int, default=1, help="how often; the best is shown")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    return parser.parse_args()


def main() -> int:
    """Run the parts; return 1 when a target was missed."""
    options = parse_options()
    if not options.model.is_dir():
        print(f"{options.model} is missing: make models")
        return 1
    sizes = QUICK if options.quick else Sizes()
    programs = find_programs(options.servers)
    plan = Plan(programs, options.model.resolve(), sizes, options.seed, options.passes)
    print(f"OpenBLAS for all: {find_openblas() or 'not found'}; seed {plan.seed}", flush=True)
    verdicts: dict[str, list[Verdict]] = {}
    with tempfile.TemporaryDirectory(prefix="mlxfleet-peers-") as directory:
        for part in options.parts:
            verdicts[part] = run_part(part, plan, Path(directory) / part)
            if options.json:
                save(options.json, plan, verdicts)
    missed = [
        verdict.row.label for rows in verdicts.values() for verdict in rows if verdict.met is False
    ]
    print(f"\nmissed: {'; '.join(missed)}" if missed else "\nno target missed")
    return 1 if missed and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main())
