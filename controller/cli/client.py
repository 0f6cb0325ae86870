"""The REST client of mlxctl: blocking calls, errors as CliError with the right exit code.

It knows paths and errors and nothing of commands; the commands call it and nothing else.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from controller.cli.exits import CliError, Exit
from manifests.kinds.meta import GROUP, VERSION
from manifests.wire.status import ApiError

DEFAULT_SERVER = "http://127.0.0.1:7070"
TABLE_ACCEPT = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
_CONNECT_SECONDS = 5.0
_READ_SECONDS = 30.0

JsonObject = dict[str, Any]


def exit_code_of(error: ApiError) -> Exit:
    """Return the exit code that an answer of the API stands for. Pure."""
    if error.code == 404:
        return Exit.NOT_FOUND
    if error.code == 409:
        return Exit.CONFLICT
    if error.code in {401, 403, 429}:
        return Exit.REFUSED
    if error.code == 503:
        return Exit.UNREACHABLE
    return Exit.FAILED


def api_failure(error: ApiError) -> CliError:
    """Return the command's end for an answer that is not success. Pure."""
    return CliError(error.message, code=exit_code_of(error))


@dataclass(frozen=True, slots=True)
class WatchLine:
    """One line of a watch."""

    type: str
    object: JsonObject


class ApiClient:
    """Calls one server. Raises CliError (unreachable) and ApiError (an answer that says no)."""

    def __init__(self, server: str, api_key: str = "") -> None:
        self.server = server.rstrip("/")
        timeout = httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)
        # Loopback and local networks: a proxy from the environment would only be in the way.
        self._http = httpx.Client(
            base_url=self.server,
            timeout=timeout,
            trust_env=False,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        )

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def path(self, plural: str, name: str = "", subresource: str = "") -> str:
        """Return the path of a collection, an object or a subresource. Pure."""
        parts = ["", "apis", GROUP, VERSION, plural, name, subresource]
        return "/".join(part for index, part in enumerate(parts) if part or index == 0)

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the decoded JSON answer of one call."""
        content = None if body is None else json.dumps(body).encode()
        sent = {"Accept": "application/json", "Content-Type": "application/json", **(headers or {})}
        with self._reaching():
            answer = self._http.request(method, path, params=params, content=content, headers=sent)
        return self._decode(answer)

    def get(self, plural: str, name: str) -> JsonObject:
        """Return one object."""
        result: JsonObject = self.request("GET", self.path(plural, name))
        return result

    def find(self, plural: str, name: str) -> JsonObject | None:
        """Return one object, or None when it does not exist."""
        try:
            return self.get(plural, name)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def list(self, plural: str, *, selector: str = "", fields: str = "") -> JsonObject:
        """Return the whole list object of one kind."""
        params = {"labelSelector": selector, "fieldSelector": fields}
        chosen = {key: value for key, value in params.items() if value}
        result: JsonObject = self.request("GET", self.path(plural), params=chosen)
        return result

    def watch(
        self, plural: str, *, fields: str = "", version: str = "", seconds: float | None = None
    ) -> Iterator[WatchLine]:
        """Yield watch lines until the server ends the watch or `seconds` without a line pass."""
        params = {"watch": "1", "fieldSelector": fields, "resourceVersion": version}
        chosen = {key: value for key, value in params.items() if value}
        timeout = httpx.Timeout(seconds, connect=_CONNECT_SECONDS)
        with (
            self._reaching(),
            self._http.stream("GET", self.path(plural), params=chosen, timeout=timeout) as answer,
        ):
            self.raise_for_status(answer)
            for line in answer.iter_lines():
                if line.strip():
                    raw = json.loads(line)
                    yield WatchLine(raw["type"], raw["object"])

    @contextmanager
    def stream(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: Any = None
    ) -> Iterator[httpx.Response]:
        """Open an answer to be read piece by piece, without a limit between pieces."""
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        with (
            self._reaching(),
            self._http.stream(method, path, params=params, json=body, timeout=timeout) as answer,
        ):
            yield answer

    def raise_for_status(self, answer: httpx.Response) -> None:
        """Raise ApiError when a streamed answer says no."""
        if answer.status_code >= 400:
            answer.read()
            self._decode(answer)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as fault:
            raise CliError(
                f"cannot reach {self.server}: {fault}",
                hint="Is it running? `mlxctl up` starts a fleet here; --server or MLXCTL_SERVER "
                "names another one.",
                code=Exit.UNREACHABLE,
            ) from fault
        except httpx.TransportError as fault:
            kind = type(fault).__name__
            raise CliError(
                f"lost the connection to {self.server} ({kind}): {fault}", code=Exit.UNREACHABLE
            ) from fault

    def _decode(self, answer: httpx.Response) -> Any:
        try:
            body = answer.json()
        except ValueError:
            body = None
        if answer.status_code >= 400:
            raise ApiError.from_status(answer.status_code, body)
        if body is None:
            raise CliError(f"{self.server} did not answer with JSON; is it an mlxfleet controller?")
        return body
