"""Entry point of the engine process; started by the agent's pool, never by hand."""

import argparse
import asyncio
import os
import sys

from node_agent.engine.process import serve


def main() -> None:
    """Serve on the socket inherited as `--fd` and end with its exit code."""
    parser = argparse.ArgumentParser(prog="python -m node_agent.engine")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket of the agent")
    code = asyncio.run(serve(parser.parse_args().fd))
    sys.stdout.flush()
    sys.stderr.flush()
    # Arrays and streams are gone by now; static destructors of native libraries are skipped.
    os._exit(code)


if __name__ == "__main__":
    main()
