"""What the pool keeps of what an engine tells of its cache."""

from pathlib import Path

from node_agent.engine.messages import (
    CacheReport,
    CacheSettings,
    Finished,
    Limits,
    PrefixesHeld,
    Restored,
)
from node_agent.pool.cache_side import CacheNotes, CacheTally, CacheTerms
from node_agent.pool.load_plan import plan_load
from node_agent.pool.settings import PoolSettings
from node_agent.sources.base import ModelFiles
from tests.support.pools import SHAPE, make_want

TERMS = CacheTerms("lab", enabled=True, settings=CacheSettings(hot_bytes=7, directory="/kv"))
FILES = ModelFiles(Path("/m"), 1, "samples", SHAPE, content="every byte")


def test_restored_tokens_are_split_by_the_blocks_they_came_from() -> None:
    notes = CacheNotes()
    notes.begin(TERMS)
    notes.note(Restored(request_id="a", tokens=90, hot_blocks=1, ssd_blocks=2, seconds=0.5))
    notes.note(Restored(request_id="b", tokens=10, hot_blocks=1, ssd_blocks=0, seconds=0.25))
    notes.note(Finished(request_id="a", reason="stop", prompt_tokens=200, completion_tokens=1))
    tally = notes.view(TERMS).tally
    assert tally == CacheTally(200, 40, 60, restores=2, restore_seconds=0.75)


def test_a_set_of_prefixes_follows_its_changes() -> None:
    notes = CacheNotes()
    notes.begin(TERMS)
    notes.note(PrefixesHeld(full=True, added=[b"a", b"b"]))
    first = notes.view(TERMS)
    notes.note(PrefixesHeld(full=False, added=[b"c"], removed=[b"a"]))
    second = notes.view(TERMS)
    assert (first.held, second.held) == ({b"a", b"b"}, {b"b", b"c"})
    assert second.changes > first.changes
    notes.note(PrefixesHeld(full=True, added=[b"d"]))
    assert notes.view(TERMS).held == {b"d"}


def test_nothing_is_held_by_a_process_that_is_gone() -> None:
    notes = CacheNotes()
    notes.begin(TERMS)
    notes.note(CacheReport(fingerprint="f", hot_used_bytes=5))
    notes.note(PrefixesHeld(full=True, added=[b"a"]))
    assert notes.view(TERMS).hot_used_bytes == 5
    notes.end()
    view = notes.view(TERMS)
    assert (view.began, view.report, view.held, view.hot_used_bytes) == (None, None, frozenset(), 0)


def test_an_engine_gets_the_content_of_its_files_only_where_something_is_cached() -> None:
    settings = PoolSettings(log_directory=Path("/logs"))
    spec = make_want().spec
    cached = plan_load(spec, FILES, settings, Limits(), 0, TERMS)
    assert (cached.model_fingerprint, cached.cache) == ("every byte", TERMS.settings)
    assert plan_load(spec, FILES, settings, Limits(), 0, CacheTerms()).model_fingerprint == ""
    assert plan_load(spec, FILES, settings, Limits(), 0).model_fingerprint == ""
