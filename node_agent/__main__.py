"""`python -m node_agent`: the process root of the agent."""

import asyncio
import sys
from collections.abc import Sequence

import uvloop

from node_agent.app import run_agent
from node_agent.data_dir import DataDir, DataDirError
from node_agent.logs import configure_logging
from node_agent.server import ListenError, raise_file_limit
from node_agent.settings import AgentSettings, SettingsError, parse_settings
from node_agent.stopping import StopSignals


async def _run(settings: AgentSettings, data: DataDir) -> int:
    signals = StopSignals()
    signals.install()
    return await run_agent(settings, data, signals)


def _fail(lines: Sequence[str], code: int) -> int:
    for line in lines:
        sys.stderr.write(f"node agent: {line}\n")
    return code


def main(arguments: Sequence[str]) -> int:
    """Run the agent; 2 for a bad command line, 1 when it cannot run."""
    try:
        settings = parse_settings(arguments)
    except SettingsError as fault:
        return _fail(fault.faults, 2)
    configure_logging(settings.log_format)
    raise_file_limit()
    try:
        data = DataDir(settings.data_dir)
    except DataDirError as fault:
        return _fail([str(fault)], 1)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(settings, data))
    except (ListenError, OSError) as fault:
        return _fail([str(fault)], 1)
    finally:
        data.release()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
