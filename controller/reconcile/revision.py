"""The Engine that a Model stands for: its revision, its name and its manifest.

Pure. Owns which settings of a Model make a copy outdated. Called by the model plan and shell.
"""

import hashlib
import json
from collections.abc import Iterable

from manifests.kinds.engine import (
    ENGINE_FINALIZER,
    MODEL_LABEL,
    NODE_LABEL,
    REVISION_LABEL,
    Engine,
    EngineSpec,
)
from manifests.kinds.meta import API_VERSION
from manifests.kinds.model import Model, ModelSpec

_COPIED = tuple(sorted(EngineSpec.model_fields.keys() & ModelSpec.model_fields.keys()))
_NAME_ROOM = 230


def engine_revision(spec: ModelSpec) -> str:
    """Return the hash of the settings a running copy was made from.

    Settings at their default are left out, so that a controller which knows more settings does
    not restart every engine. The minimum context only decides where a copy goes.
    """
    settings = spec.model_dump(
        mode="json", by_alias=True, include=set(_COPIED), exclude_defaults=True
    )
    settings.get("context", {}).pop("minTokens", None)
    text = json.dumps({key: value for key, value in settings.items() if value}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def engine_names(model: str, revision: str, taken: Iterable[str], count: int) -> list[str]:
    """Return the first free names of a model's copies at a revision."""
    used = set(taken)
    names: list[str] = []
    ordinal = 0
    while len(names) < count:
        name = f"{model[:_NAME_ROOM].rstrip('-.')}-{revision}-{ordinal}"
        if name not in used:
            names.append(name)
        ordinal += 1
    return names


def build_engine(model: Model, revision: str, name: str, node: str) -> Engine:
    """Return the manifest of one copy, owned by its model and kept until its agent lets go."""
    settings = {
        EngineSpec.model_fields[field].alias or field: getattr(model.spec, field)
        for field in _COPIED
    }
    owner = {
        "apiVersion": API_VERSION,
        "kind": model.kind,
        "name": model.metadata.name,
        "uid": model.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    labels = {NODE_LABEL: node, REVISION_LABEL: revision}
    if len(str(model.metadata.name)) <= 63:
        labels[MODEL_LABEL] = str(model.metadata.name)
    return Engine.model_validate(
        {
            "metadata": {
                "name": name,
                "labels": labels,
                "finalizers": [ENGINE_FINALIZER],
                "ownerReferences": [owner],
            },
            "spec": {
                "model": model.metadata.name,
                "node": node,
                "revision": revision,
                **settings,
            },
        }
    )
