"""Writing what keys have used into their status, slowly and at the end.

Several gateways add to one status: each write is of the sum it read and holds only while nobody
else wrote in between, else it is made anew. What a gateway has not written when it is killed is
lost, a few seconds of it; a write whose answer was lost may count twice. Run by the gateway.
"""

import asyncio

import structlog

from controller.gateway.keys.quotas import Quotas, Report
from controller.runtime.objects import Objects
from manifests.kinds.api_key import ApiKey, KeyUsage
from manifests.kinds.key_usage import add_usage
from manifests.kinds.scheme import parse_object
from manifests.wire.status import ApiError

_LOG = structlog.get_logger(__name__)
_PLURAL = "apikeys"
_CONFLICTS_MAX = 20
_LAST_WRITE_SECONDS = 5.0


class UsageWriter:
    """Brings usage from the quotas into the store."""

    def __init__(self, objects: Objects, quotas: Quotas, every_seconds: float) -> None:
        self._objects, self._quotas, self._every_seconds = objects, quotas, every_seconds

    async def run(self) -> None:
        """Write now and then until cancelled, and once more then."""
        writing: asyncio.Task[None] | None = None
        try:
            while True:
                await asyncio.sleep(self._every_seconds)
                # Cut off in the middle, nobody would know whether it was written.
                writing = asyncio.create_task(self.write_all())
                await asyncio.shield(writing)
        finally:
            try:
                async with asyncio.timeout(_LAST_WRITE_SECONDS):
                    if writing is not None:
                        await writing
                    await self.write_all()
            except TimeoutError:
                _LOG.warning("usage of the last seconds could not be written")

    async def write_all(self) -> None:
        """Write the usage of every key that was used since the last time."""
        for report in self._quotas.begin_reports():
            try:
                written = await self._write(report)
            except (ApiError, OSError, KeyError, ValueError) as fault:
                # The last two: a newer controller stores keys that this version cannot read.
                self._quotas.failed(report)
                _LOG.warning("usage not written", key=report.name, error=str(fault))
            else:
                self._quotas.reported(report, written)

    async def _write(self, report: Report) -> KeyUsage:
        """Add one report to its key's status. Raises ApiError, OSError with nothing added."""
        for _ in range(_CONFLICTS_MAX):
            try:
                raw = await self._objects.get(_PLURAL, report.name)
            except ApiError as fault:
                if fault.code == 404:
                    return KeyUsage()
                raise
            key = parse_object(raw)
            if not isinstance(key, ApiKey) or key.metadata.uid != report.uid:
                # Another key under the same name; this one's usage went with it.
                return KeyUsage()
            usage = add_usage(key.status.usage, report.delta)
            patch = {
                "metadata": {"resourceVersion": key.metadata.resource_version},
                "status": {"usage": usage.model_dump(mode="json", by_alias=True)},
            }
            try:
                await self._objects.patch(_PLURAL, report.name, patch, subresource="status")
            except ApiError as fault:
                if fault.code != 409:
                    raise
                continue
            return usage
        raise ApiError(409, f"apikey {report.name} is written by others all the time")
