"""The `SourceResolver` of the pool and the inspector of the agent's API.

`resolve` may download and is called for declared engines only. `inspect` never downloads weights,
so that a controller can ask any node about any source before it places a copy.
"""

import asyncio
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from manifests.kinds.model import Source
from manifests.wire.report import Inspection
from node_agent.sources.base import ModelFiles, SourceError
from node_agent.sources.content import ContentDigests
from node_agent.sources.hub import Hub, ProgressCallback
from node_agent.sources.hub_messages import shape_of
from node_agent.sources.local import DirectoryReader, expand

_Key = tuple[str, str | None]


class Sources:
    """Model sources as this node reaches them."""

    def __init__(self, hub: Hub | None = None, digests: ContentDigests | None = None) -> None:
        """Without `digests` every byte of a model is still hashed, but not remembered on disk."""
        self._hub, self._digests = hub or Hub(), digests or ContentDigests()
        self._reader = DirectoryReader()
        self._found: dict[_Key, ModelFiles] = {}
        self._whole: dict[Path, tuple[ModelFiles, ModelFiles]] = {}
        self._peeked: dict[_Key, Inspection] = {}
        # One look-up for one repository at a time: a second one finds the first one's files.
        self._turns: defaultdict[_Key, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def resolve(self, source: Source, progress: ProgressCallback) -> ModelFiles:
        """Return the files and what they hold, downloading them if need be.

        Units: `progress` gets done and total bytes. Raises: SourceError.
        """
        files = await self._locate(source, progress)
        content = await self._digests.of_directory(files.directory)
        known = self._whole.get(files.directory)
        if known is not None and known[0] is files and known[1].content == content:
            return known[1]
        whole = replace(files, content=content)
        self._whole[files.directory] = files, whole
        return whole

    async def _locate(self, source: Source, progress: ProgressCallback) -> ModelFiles:
        if source.path is not None:
            return await self._reader.read(expand(source.path))
        key = _key(source)
        async with self._turns[key]:
            files = await self._known(key)
            if files is None:
                directory = await self._hub.fetch(*key, progress)
                files = self._found[key] = await self._reader.read(directory)
            return files

    async def inspect(self, source: Source) -> Inspection:
        """Return what a source holds, from disk or from the hub's metadata. Raises: SourceError.

        The fingerprint is of the weights themselves, so it is empty while they are not here.
        """
        if source.path is not None:
            return _inspection(source, await self._reader.read(expand(source.path)))
        key = _key(source)
        files = await self._known(key)
        if files is not None:
            return _inspection(source, files)
        if key not in self._peeked:
            directory = await self._hub.find(*key)
            if directory is not None:
                files = self._found[key] = await self._reader.read(directory)
                return _inspection(source, files)
            peeked = await self._hub.peek(*key)
            self._peeked[key] = Inspection(
                source=source.text,
                weights_bytes=peeked.weights_bytes,
                fingerprint="",
                shape=shape_of(peeked),
                on_disk=False,
            )
        return self._peeked[key]

    async def _known(self, key: _Key) -> ModelFiles | None:
        """Return files found before; a cache that was deleted or damaged since is forgotten."""
        files = self._found.get(key)
        if files is None:
            return None
        try:
            return await self._reader.read(files.directory)
        except SourceError:
            self._found.pop(key, None)
            return None


def _key(source: Source) -> _Key:
    return source.hub or "", source.revision


def _inspection(source: Source, files: ModelFiles) -> Inspection:
    return Inspection(
        source=source.text,
        weights_bytes=files.weights_bytes,
        fingerprint=files.fingerprint,
        shape=files.shape,
    )
