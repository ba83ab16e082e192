"""One door to the hub: HTTP requests with the standard library, so that `hubctl` starts quickly."""

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

TIMEOUT_S = 30.0


class HubError(Exception):
    """The hub refused, or could not be asked. `exit_code` is what hubctl ends with."""

    exit_code = 1


class NotFoundError(HubError):
    exit_code = 3


class RefusedError(HubError):
    exit_code = 4


class UnreachableError(HubError):
    exit_code = 5


_BY_STATUS: dict[int, type[HubError]] = {
    401: RefusedError,
    403: RefusedError,
    404: NotFoundError,
    409: RefusedError,
    422: RefusedError,
}


@dataclass(frozen=True, slots=True)
class Hub:
    """Where the hub is and who asks."""

    server: str
    token: str = field(repr=False, default="")
    ca_pem: str = ""

    def get(self, path: str, **query: str | None) -> Any:
        return self._call("GET", path, query)

    def post(self, path: str, body: Any = None, *, content_type: str = "application/json", **query: str | None) -> Any:
        data = body.encode() if isinstance(body, str) else json.dumps(body if body is not None else {}).encode()
        return self._call("POST", path, query, data, content_type)

    def delete(self, path: str, **query: str | None) -> Any:
        return self._call("DELETE", path, query)

    def events(self, topics: str) -> Iterator[dict[str, Any]]:
        """Server-sent events for ever, one dict per event; ends when the hub closes the stream. Raises HubError."""
        with self._open("GET", "/api/v1/events", {"topics": topics}, timeout_s=60.0) as stream:
            for line in stream:
                if line.startswith(b"data:"):
                    yield json.loads(line[5:])

    def _call(
        self, method: str, path: str, query: dict[str, str | None], data: bytes | None = None, kind: str = ""
    ) -> Any:
        with self._open(method, path, query, data=data, content_type=kind) as response:
            text = response.read()
        return json.loads(text) if text else None

    def _open(
        self,
        method: str,
        path: str,
        query: dict[str, str | None],
        *,
        data: bytes | None = None,
        content_type: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> Any:
        given = {name: value for name, value in query.items() if value}
        url = f"{self.server.rstrip('/')}{path}" + (f"?{urllib.parse.urlencode(given)}" if given else "")
        headers = {"Accept": "application/json", "User-Agent": "hubctl"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if content_type:
            headers["Content-Type"] = content_type
        request = urllib.request.Request(url, data=data, method=method, headers=headers)  # noqa: S310 - checked in config
        try:
            return urllib.request.urlopen(request, timeout=timeout_s, context=self._tls())  # noqa: S310 - as above
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise UnreachableError(
                f"no answer from the hub at {self.server}: {reason}\nIs it running? See --server, HUBCTL_SERVER and the configuration file."
            ) from None

    def _tls(self) -> ssl.SSLContext | None:
        if not self.server.startswith("https:"):
            return None
        return ssl.create_default_context(cadata=self.ca_pem or None)


def _refusal(error: urllib.error.HTTPError) -> HubError:
    kind = _BY_STATUS.get(error.code, HubError)
    try:
        problem = json.loads(error.read())
    except ValueError:
        return kind(f"the hub answered {error.code} {error.reason}")
    lines = [problem.get("detail") or problem.get("title") or f"the hub answered {error.code}"]
    lines += [f"  {wrong.get('field') or 'document'}: {wrong.get('message')}" for wrong in problem.get("errors") or []]
    lines += _of_documents(problem.get("results") or [])
    if error.code == 401:
        lines.append(
            "Give a bearer token of the management cluster: --token-file, HUBCTL_TOKEN_FILE or the configuration file."
        )
    return kind("\n".join(lines))


def _of_documents(results: list[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for result in results:
        what = f"document {result['index'] + 1}, {result.get('kind') or '?'} {result.get('name') or ''}".rstrip()
        lines += [
            f"  {what}: {wrong.get('field') or 'document'}: {wrong['message']}" for wrong in result.get("errors") or []
        ]
    return lines
