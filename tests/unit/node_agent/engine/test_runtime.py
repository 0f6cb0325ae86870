"""The MLX thread's root: a fault answers every request and ends the engine."""

import threading
from collections.abc import Sequence

from node_agent.engine import runtime
from node_agent.engine.loading import LoadedModel
from node_agent.engine.mailbox import Board, Mailbox
from node_agent.engine.messages import (
    Cancel,
    Event,
    Failed,
    Finished,
    Limits,
    Load,
    Loaded,
    LoadFailed,
    Shutdown,
)
from node_agent.engine.rows import HasRoom, TokenStep, never
from node_agent.engine.runtime import ExitCode, Runtime
from tests.support.counting_runner import CountingRunner, row


class FaultyRunner(CountingRunner):
    """Holds one row and raises in its second step."""

    def __init__(self) -> None:
        super().__init__(max_rows=1, chunk_tokens=8)
        self.steps = 0

    def decode(self, has_room: HasRoom = never) -> tuple[TokenStep, ...]:
        self.steps += 1
        if self.steps > 1:
            raise RuntimeError("[METAL] command buffer failed")
        return ()


def live(monkeypatch, load, *commands, mailbox: Mailbox | None = None) -> tuple[int, list]:
    """Run the runtime on a thread of its own, as the engine does."""
    monkeypatch.setattr(runtime, "load", load)
    mailbox, events, codes = mailbox or Mailbox(), [], []
    for command in commands:
        mailbox.put(command)

    def emit(batch: Sequence[Event]) -> None:
        events.extend(batch)

    engine = Runtime(mailbox, Board(), emit)
    thread = threading.Thread(target=lambda: codes.append(engine.run()), daemon=True)
    thread.start()
    thread.join(30)
    return codes[0], events


def load_faulty(command: Load, progress: object, memory: object, store: object) -> LoadedModel:
    announcement = Loaded(device="none", mlx_version="0", chunk_tokens=8, active_bytes=0)
    return LoadedModel(FaultyRunner(), 100, announcement)


LOAD = Load(model_path="/nowhere")


def test_a_step_that_raises_fails_every_request_and_ends_with_a_code(monkeypatch, capsys):
    """B51: running and waiting rows are answered, and the process does not live on."""
    code, events = live(monkeypatch, load_faulty, LOAD, row("running"), row("waiting"))
    assert code == ExitCode.STEP_FAILED
    failed = [event for event in events if isinstance(event, Failed)]
    assert [(one.request_id, one.code, one.retryable) for one in failed] == [
        ("running", "engine_died", "elsewhere"),
        ("waiting", "engine_died", "elsewhere"),
    ]
    assert "[METAL] command buffer failed" in failed[0].message
    assert "Traceback" in capsys.readouterr().err


def test_a_load_that_raises_is_told_and_ends_with_a_code(monkeypatch, capsys):
    def load(command: Load, progress: object, memory: object, store: object) -> LoadedModel:
        raise RuntimeError("[GatherMM::eval] Currently only supports float32.")

    code, events = live(monkeypatch, load, LOAD)
    assert code == ExitCode.LOAD_FAILED
    (failed,) = events
    assert isinstance(failed, LoadFailed)
    assert "use a float32 or a quantized copy" in failed.message
    assert "Traceback" in capsys.readouterr().err


def test_shutdown_answers_what_is_queued_and_what_runs(monkeypatch):
    mailbox = Mailbox()

    def load(command: Load, progress: object, memory: object, store: object) -> LoadedModel:
        for late in (row("a"), Cancel(request_id="a"), row("b"), Shutdown(), row("late")):
            mailbox.put(late)
        return load_faulty(command, progress, memory, store)

    code, events = live(monkeypatch, load, LOAD, mailbox=mailbox)
    assert code == ExitCode.CLEAN
    ends = [event for event in events if isinstance(event, Finished | Failed)]
    assert [(one.request_id, getattr(one, "code", one.__class__.__name__)) for one in ends] == [
        ("a", "Finished"),
        ("b", "shutting_down"),
        ("late", "shutting_down"),
    ]


def test_shutdown_before_the_load_is_clean(monkeypatch):
    code, events = live(monkeypatch, load_faulty, Shutdown())
    assert (code, events) == (ExitCode.CLEAN, [])


def test_a_wired_limit_that_changes_is_set_between_two_steps_and_once(monkeypatch):
    """On Linux nothing can be wired; what would be set is looked at here."""
    wired, mailbox = [], Mailbox()

    def set_wired_limit(size: int) -> None:
        wired.append(size)
        if size == 0:
            mailbox.put(Shutdown())

    monkeypatch.setattr(runtime, "set_wired_limit", set_wired_limit)
    limits = [Limits(wired_limit_bytes=size) for size in (7, 9, 9, None, 0)]
    load = Load(model_path="/nowhere", wired_limit_bytes=7)
    code, _ = live(monkeypatch, load_faulty, load, *limits, mailbox=mailbox)
    assert (code, wired) == (ExitCode.CLEAN, [9, 0])
