"""When to stop: the first signal asks, the second insists. Called by the app."""

import asyncio
import signal


class StopSignals:
    """SIGTERM and SIGINT as events."""

    def __init__(self) -> None:
        self._asked, self._insisted = asyncio.Event(), asyncio.Event()

    def install(self) -> None:
        """Take the process's signals. Mutates: handlers of the running loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask)

    def ask(self) -> None:
        """Ask for a stop; the second time, for a stop now."""
        (self._insisted if self._asked.is_set() else self._asked).set()

    @property
    def insisted(self) -> bool:
        """Whether somebody does not want to wait."""
        return self._insisted.is_set()

    async def wait_asked(self) -> None:
        """Return once a stop is asked for."""
        await self._asked.wait()

    async def wait_insisted(self) -> None:
        """Return once a stop is to happen now."""
        await self._insisted.wait()
