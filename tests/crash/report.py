"""The table a run prints, and what it is judged by. Pure."""

from collections import Counter

from tests.crash.run import Record

# So many kills cannot all miss the writes.
_ENOUGH_KILLS = 50


def find_faults(record: Record) -> list[str]:
    """Return in words what broke the promise, or shows that nothing was tried."""
    faults = list(record.faults)
    if record.quarantined:
        # The end of a process cuts no file: a block has its name once it is whole.
        faults.append(f"{record.quarantined} blocks were found damaged")
    if record.kills > 1 and not (record.restored_tokens and record.files_compared):
        faults.append("nothing was restored or compared")
    if record.kills >= _ENOUGH_KILLS and not record.kills_in_write:
        faults.append("no kill came while a block was written")
    return faults


def render(record: Record) -> str:
    """Return the table and the verdict."""
    wrong = sum("wrong answer" in fault for fault in record.faults)
    rows = [
        ("kills", record.kills),
        ("  while a block was being written", record.kills_in_write),
        ("  while the index was being written", record.kills_in_index),
        ("blocks written", record.written),
        ("block files checked after kills", record.files_checked),
        ("  compared with a cold recomputation", record.files_compared),
        ("answers", record.answered),
        ("  samples after a restart", record.samples),
        ("restored tokens", record.restored_tokens),
        ("quarantined blocks", record.quarantined),
        ("faults of the tier", record.tier_faults),
        ("wrong answers", wrong),
    ]
    lines = [f"== seed {record.plan.seed} =="]
    lines += [f"{name:<40}{count:>12,}" for name, count in rows]
    faults = find_faults(record)
    if not faults:
        return "\n".join([*lines, "", "nothing that is trusted is wrong"])
    counted = Counter(faults)
    lines += ["", f"FAILED, {len(faults)} faults:"]
    return "\n".join([*lines, *(f"  {text} (x{n})" for text, n in counted.items())])
