"""Small valid objects of each kind, as clients send them."""

from typing import Any

from manifests.kinds.api_key import hash_secret
from manifests.kinds.meta import API_VERSION

Raw = dict[str, Any]


def model(name: str = "m", **spec: Any) -> Raw:
    """Return a Model."""
    body = {"source": {"path": "/models/tiny"}, **spec}
    return {
        "apiVersion": API_VERSION,
        "kind": "Model",
        "metadata": {"name": name},
        "spec": body,
    }


def guard(name: str = "g", **spec: Any) -> Raw:
    """Return a MemoryGuard."""
    return {
        "apiVersion": API_VERSION,
        "kind": "MemoryGuard",
        "metadata": {"name": name},
        "spec": spec,
    }


def engine(name: str = "m-1", node: str = "mini", of: str = "m") -> Raw:
    """Return an Engine."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Engine",
        "metadata": {"name": name},
        "spec": {
            "model": of,
            "node": node,
            "revision": "r1",
            "source": {"path": "/models/tiny"},
        },
    }


def node(name: str = "mini", **spec: Any) -> Raw:
    """Return a Node."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Node",
        "metadata": {"name": name},
        "spec": spec,
    }


def event(name: str, last_timestamp: str = "", about: str = "m") -> Raw:
    """Return an Event."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Event",
        "metadata": {"name": name},
        "involvedObject": {"kind": "Model", "name": about, "uid": "u1"},
        "reason": "Tested",
        "message": "a test ran",
        "lastTimestamp": last_timestamp,
    }


def route(name: str = "r", **spec: Any) -> Raw:
    """Return a Route to one model."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Route",
        "metadata": {"name": name},
        "spec": {"backends": [{"model": "m"}], **spec},
    }


def api_key(name: str = "k", **spec: Any) -> Raw:
    """Return an ApiKey of the secret `secret`."""
    return {
        "apiVersion": API_VERSION,
        "kind": "ApiKey",
        "metadata": {"name": name},
        "spec": {"hash": hash_secret("secret"), **spec},
    }
