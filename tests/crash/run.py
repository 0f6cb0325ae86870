"""Rounds of two engines on one directory, both killed, until there were enough kills."""

import random
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.plan import HEADS, HIDDEN, LAYERS, Plan, plan_kill, plan_prompts, settings
from tests.crash.reference import Reference, block_files, check_file, observe_reference
from tests.crash.victim import Seen, Victim, plan_load
from tests.support.tiny_models import tiny_model

ENGINES = 2


@dataclass(slots=True)
class Record:
    """What a run saw, summed."""

    plan: Plan
    kills: int = 0
    kills_in_write: int = 0
    kills_in_index: int = 0
    files_checked: int = 0
    files_compared: int = 0
    written: int = 0
    answered: int = 0
    samples: int = 0
    restored_tokens: int = 0
    quarantined: int = 0
    tier_faults: int = 0
    faults: list[str] = field(default_factory=list)


def run(plan: Plan, directory: Path, tell: Callable[[Record], None] = lambda _: None) -> Record:
    """Kill engines on a directory; `tell` hears of each round."""
    model = tiny_model("llama", layers=LAYERS, hidden=HIDDEN, heads=HEADS)
    prompts, record = plan_prompts(plan.documents), Record(plan)
    place, source = directory / "shared", random.Random(plan.seed)
    for made in (place, directory / "reference"):
        made.mkdir()
    reference = observe_reference(model, prompts, directory / "reference")
    cache = settings(place, plan.size_bytes)
    while record.kills < plan.kills:
        victims = [
            Victim(f"kill {record.kills + number + 1}", model, cache, reference.answers)
            for number in range(min(ENGINES, plan.kills - record.kills))
        ]
        with ThreadPoolExecutor(ENGINES) as pool:
            lives = [
                pool.submit(
                    victim.live,
                    source.sample(prompts, plan.samples),
                    plan_load(random.Random(source.random()), prompts),
                    plan.rows,
                    plan_kill(source),
                )
                for victim in victims
            ]
        for life in lives:
            life.result()
        record.kills += len(victims)
        for victim in victims:
            _add(record, victim.seen)
        _look(record, place, reference)
        tell(record)
    last = Victim("the last one", model, cache, reference.answers)
    code = last.finish(list(prompts))
    _add(record, last.seen)
    if code != 0:
        record.faults.append(f"the last engine left with {code}")
    record.faults += list(find_disorder(place))
    return record


def _add(record: Record, seen: Seen) -> None:
    record.faults += seen.faults
    record.samples += seen.samples
    record.answered += seen.answered
    record.restored_tokens += seen.restored_tokens
    record.quarantined += seen.quarantined
    record.tier_faults += seen.tier_faults
    record.written += seen.written


def _look(record: Record, place: Path, reference: Reference) -> None:
    """Judge what the dead left, before anybody puts it right."""
    kv = place / "kv"
    record.kills_in_write += len(list((kv / "blocks").glob("tmp-*")))
    journal = kv / "index.db-journal"
    record.kills_in_index += journal.exists() and journal.stat().st_size > 0
    for path in block_files(place):
        verdict = check_file(path, reference)
        record.files_checked += 1
        record.files_compared += verdict.compared
        if verdict.fault:
            record.faults.append(f"after kill {record.kills}: {verdict.fault}")


def find_disorder(place: Path) -> list[str]:
    """Return what is wrong with a directory that all have left in good order."""
    kv, faults = place / "kv", []
    left = [path.name for name in ("blocks", "owners") for path in (kv / name).iterdir()]
    strays = [name for name in left if not name.endswith(".safetensors")]
    if strays:
        faults.append(f"leftovers of the dead: {strays}")
    with closing(sqlite3.connect(kv / "index.db")) as connection:
        rows = {bytes(row[0]).hex() for row in connection.execute("SELECT digest FROM blocks")}
        claims = connection.execute("SELECT count(*) FROM writing").fetchone()[0]
        figures = dict(connection.execute("SELECT name, value FROM figures"))
    files = {path.stem: path.stat().st_size for path in block_files(place)}
    if rows != files.keys():
        faults.append(f"{len(rows)} rows for {len(files)} files")
    if claims:
        faults.append(f"{claims} claims of the dead")
    size_bytes = sum(-(-size // 4096) * 4096 for size in files.values())
    if figures["used_bytes"] != size_bytes:
        faults.append(f"the index counts {figures['used_bytes']} bytes of {size_bytes}")
    return faults
