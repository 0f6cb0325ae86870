"""Entry point of the engine process; started by the agent's pool, never by hand."""

import argparse
import asyncio
import os
import sys

from node_agent.engine.process import serve

# The MLX thread builds the next step's graph in Python while the other thread has tokens to send:
# with Python's 5 ms the first token of a restored prompt left 8 ms later.
SWITCH_SECONDS = 0.0005


def main() -> None:
    """Serve on the socket inherited as `--fd` and end with its exit code."""
    parser = argparse.ArgumentParser(prog="python -m node_agent.engine")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket of the agent")
    sys.setswitchinterval(SWITCH_SECONDS)
    code = asyncio.run(serve(parser.parse_args().fd))
    sys.stdout.flush()
    sys.stderr.flush()
    # Arrays and streams are gone by now; static destructors of native libraries are skipped.
    os._exit(code)


if __name__ == "__main__":
    main()
