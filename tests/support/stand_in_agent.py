"""An agent as the reconcilers see one, in this process: registers, renews, obeys, inspects.

It speaks to a real registry and answers real HTTP; only the engines are left out.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from controller.runtime.objects import Objects
from manifests.kinds.engine import ENGINE_FINALIZER
from manifests.units import GIB
from manifests.wire.informer import Informer
from manifests.wire.report import INSPECT_PATH
from manifests.wire.status import ApiError
from tests.support.placing import inspection

API = "mlxfleet.dev/v1alpha1"


@dataclass
class StandInAgent:
    """One node. `weights` maps sources to GiB; `failing` revisions never become Ready."""

    objects: Objects
    name: str
    gib: float
    weights: dict[str, float]
    failing: set[str] = field(default_factory=set)
    lease_seconds: float = 0.3
    address: str = ""
    alive: bool = True
    inspected: int = 0
    running: set[str] = field(default_factory=set)
    _renewals: int = 0

    async def register(self) -> None:
        meta = {"name": self.name}
        node = {"apiVersion": API, "kind": "Node", "metadata": meta, "spec": {}}
        await self.objects.create("nodes", node)
        await self.report()

    async def report(self) -> None:
        self._renewals += 1
        size = int(self.gib * GIB)
        ceilings = {"staticBytes": size, "dynamicBytes": size, "hardBytes": size}
        status = {
            "address": self.address,
            "instance": "i1",
            "ceilings": ceilings,
            "leaseTime": f"renewal {self._renewals}",
            "leaseSeconds": self.lease_seconds,
            "conditions": [{"type": "Ready", "status": "True", "reason": "AgentReady"}],
        }
        patch = {"status": status}
        await self.objects.patch("nodes", self.name, patch, subresource="status")

    async def inspect(self, request: web.Request) -> web.Response:
        self.inspected += 1
        source = (await request.json()).get("path", "")
        if source not in self.weights:
            error = {"message": f"{source} does not exist on {self.name}", "code": "not_found"}
            return web.json_response({"error": error}, status=404)
        known = inspection(self.weights[source], source)
        return web.json_response(known.model_dump(mode="json", by_alias=True))

    async def renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.lease_seconds / 3)
            if self.alive:
                await self.report()

    async def obey_for_ever(self, engines: Informer, changed: asyncio.Event) -> None:
        while True:
            await changed.wait()
            changed.clear()
            if not self.alive:
                continue
            self.running &= set(engines.objects)
            for name in list(engines.objects):
                try:
                    await self._obey(name, engines.raw(name) or {})
                except ApiError as fault:
                    if fault.code not in {404, 409}:
                        raise
                    changed.set()

    async def _obey(self, name: str, engine: dict[str, Any]) -> None:
        meta = engine["metadata"]
        if "deletionTimestamp" in meta:
            self.running.discard(name)
            kept = [item for item in meta.get("finalizers", []) if item != ENGINE_FINALIZER]
            patch: dict[str, Any] = {"metadata": {"finalizers": kept}}
            await self.objects.patch("engines", name, patch)
            return
        phase = "Failed" if engine["spec"]["revision"] in self.failing else "Ready"
        if engine["status"].get("phase") != phase:
            self.running.add(name)
            patch = {
                "status": {"phase": phase, "message": "cannot load" if phase[0] == "F" else ""}
            }
            await self.objects.patch("engines", name, patch, subresource="status")

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["StandInAgent"]:
        """Register and act until the block ends."""
        app = web.Application()
        app.router.add_post(INSPECT_PATH, self.inspect)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        self.address = f"http://{host}:{port}"
        await self.register()
        engines = Informer(self.objects, "engines", field_selector=f"spec.node={self.name}")
        self.changed = asyncio.Event()
        engines.subscribe(lambda _: self.changed.set())
        tasks = [
            asyncio.create_task(engines.run()),
            asyncio.create_task(self.renew_for_ever()),
            asyncio.create_task(self.obey_for_ever(engines, self.changed)),
        ]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await runner.cleanup()
