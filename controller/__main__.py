"""`python -m controller`: parse the command line, run, and say in one line why it cannot."""

import asyncio
import gc
import sys
from collections.abc import Sequence

import uvloop

from controller.app import run_controller
from controller.http_server import AddressInUseError, bind
from controller.log_setup import configure_logging
from controller.settings import parse_settings
from controller.store.base import StoreUnreadableError
from controller.workers import hold_port, run_workers

# Requests leave few cycles behind; the default looks for them at every other request.
_COLLECT_AFTER_OBJECTS = 20_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the controller and return its exit code."""
    settings = parse_settings(arguments)
    configure_logging(settings.log_format)
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER_OBJECTS, 20, 20)
    try:
        if settings.workers > 1:
            given = sys.argv[1:] if arguments is None else arguments
            with hold_port(settings.listen) as held, asyncio.Runner() as runner:
                runner.run(run_workers(settings, given, held))
            return 0
        bound = bind(settings.listen, shared=settings.shared_port)
        with bound, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_controller(settings, bound))
    except (AddressInUseError, StoreUnreadableError, OSError) as fault:
        sys.stderr.write(f"controller: {fault}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
