"""What the API offers, as clients discover it. Pure.

Legacy shapes only: every kubectl since 1.20 and both Python clients read them.
"""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from manifests.kinds.meta import API_VERSION, GROUP, VERSION
from manifests.kinds.scheme import KINDS, Kind

# The Kubernetes release whose client habits this API follows; kubectl warns beyond one minor.
_KUBERNETES = "1.35.2"
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def product_version() -> str:
    """Return the version of this program."""
    try:
        return version("mlxfleet")
    except PackageNotFoundError:
        return "0.0.0"


def describe_version() -> dict[str, str]:
    """Return the answer of /version."""
    major, minor, _ = _KUBERNETES.split(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{_KUBERNETES}+fleet.{product_version()}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": platform.python_implementation(),
        "platform": f"{platform.system().lower()}/{platform.machine()}",
    }


def describe_core() -> dict[str, Any]:
    """Return the answer of /api: no core kinds are served."""
    return {"kind": "APIVersions", "versions": [], "serverAddressByClientCIDRs": []}


def describe_groups() -> dict[str, Any]:
    """Return the answer of /apis."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group()]}


def describe_group() -> dict[str, Any]:
    """Return the answer of /apis/GROUP."""
    return {"kind": "APIGroup", "apiVersion": "v1", **_group()}


def describe_resources() -> dict[str, Any]:
    """Return the answer of /apis/GROUP/VERSION."""
    resources: list[dict[str, Any]] = []
    for kind in KINDS:
        resources.append(_resource(kind))
        if kind.has_status:
            resources.append(
                {
                    "name": f"{kind.plural}/status",
                    "singularName": "",
                    "namespaced": False,
                    "kind": kind.name,
                    "verbs": ["get", "patch", "update"],
                }
            )
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": API_VERSION,
        "resources": resources,
    }


def _group() -> dict[str, Any]:
    served = {"groupVersion": API_VERSION, "version": VERSION}
    return {"name": GROUP, "versions": [served], "preferredVersion": served}


def _resource(kind: Kind) -> dict[str, Any]:
    categories = ["fleet"] if kind.name == "Event" else ["fleet", "all"]
    return {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": False,
        "kind": kind.name,
        "verbs": _VERBS,
        "shortNames": list(kind.short_names),
        "categories": categories,
    }
