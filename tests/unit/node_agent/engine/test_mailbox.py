from node_agent.engine.mailbox import Mailbox
from node_agent.engine.messages import Cancel, Generate, Shutdown


def row(name: str) -> Generate:
    return Generate(request_id=name, prompt=[1], max_tokens=1)


def test_commands_come_out_in_order():
    mailbox = Mailbox()
    commands = [row("a"), Cancel(request_id="a"), Shutdown()]
    assert all(mailbox.put(command) for command in commands)
    assert mailbox.take(0) == commands
    assert mailbox.take(0) == []
    assert mailbox.take(0.001) == []


def test_a_full_mailbox_refuses_requests_and_takes_cancel_and_shutdown():
    mailbox = Mailbox(max_queued_requests=2)
    assert [mailbox.put(row(name)) for name in "abc"] == [True, True, False]
    assert mailbox.put(Cancel(request_id="a"))
    assert mailbox.put(Shutdown())
    assert len(mailbox.take(0)) == 4
