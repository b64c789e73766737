"""A browser without a page: cookies, the second secret of a session, event streams. For tests."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import quote, urlencode

WITHIN_S = 60.0


class Browser:
    """Browser at the dashboard of a server on this host."""

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: of https; None: http."""
        self.port = port
        self._tls = tls
        self.cookie = ""
        self.csrf = ""
        self.headers: dict[str, str] = {}
        self.answer: dict[str, str] = {}  # headers of the last answer, names in lower case

    def request(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, bytes]:
        """Return (status, body); a cookie that is set is kept."""
        connection = self.connect()
        try:
            connection.request(method, path, *self._message(body, headers))
            response = connection.getresponse()
            self._take(response)
            return response.status, response.read()
        finally:
            connection.close()

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection to the server."""
        if self._tls is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN_S)
        return http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=WITHIN_S, context=self._tls
        )

    def _message(self, body: Any, headers: dict[str, str]) -> tuple[bytes | None, dict[str, str]]:
        sent = dict(self.headers)
        if self.cookie:
            sent["Cookie"] = self.cookie
        if body is not None:
            sent |= {"Content-Type": "application/json", "X-CSRF-Token": self.csrf}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return None if body is None else json.dumps(body).encode(), sent

    def _take(self, response: http.client.HTTPResponse) -> None:
        self.answer = {name.lower(): value for name, value in response.getheaders()}
        cookie = self.answer.get("set-cookie", "")
        if cookie:
            self.cookie = cookie.partition(";")[0]

    # --- the interface --------------------------------------------------------------------------

    def get(self, *segments: str, **query: object) -> dict[str, Any]:
        """Return a document; an error is a document too."""
        path = "/ui/api/" + "/".join(quote(segment, safe="") for segment in segments)
        if query:
            path += "?" + urlencode(query)
        return self._document(*self.request("GET", path))

    def post(self, *segments: str, **body: object) -> dict[str, Any]:
        """Return the answer to a change."""
        path = "/ui/api/" + "/".join(quote(segment, safe="") for segment in segments)
        return self._document(*self.request("POST", path, body))

    def _document(self, status: int, body: bytes) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(body)
        assert ("error" in found) == (status >= 400), (status, found)
        assert status < 400 or found["error"]["code"] == status
        return found

    def begin(self) -> dict[str, Any]:
        """Ask for the session, as the page does first."""
        found = self.get("session")
        self.csrf = found.get("csrf", "")
        return found

    def log_in(self, user: str = "", password: str = "", token: str = "") -> dict[str, Any]:
        """Log in; return the session or the error."""
        login = {"token": token} if token else {"user": user, "password": password}
        found = self.post("session", **login)
        self.csrf = found.get("csrf", "")
        return found

    def stream(self, *segments: str, **query: object) -> EventSource:
        """Open an event stream."""
        path = "/ui/api/" + "/".join(quote(segment, safe="") for segment in segments)
        return EventSource(self, path + ("?" + urlencode(query) if query else ""))


class EventSource:
    """An event stream that is open."""

    def __init__(self, browser: Browser, path: str) -> None:
        self._connection = browser.connect()
        self._connection.request("GET", path, *browser._message(None, {}))
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self.content_type = self._response.getheader("Content-Type", "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Iterate over (event, document) until the server ends the stream."""
        name = ""
        for line in self._response:
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                name = text[7:]
            elif text.startswith("data: "):
                yield name, json.loads(text[6:])

    def wait(self, event: str, **fields: object) -> dict[str, Any]:
        """Return the next event of that name with these fields."""
        for name, document in self.events():
            if name == event and all(document.get(key) == fields[key] for key in fields):
                return document
        raise AssertionError(f"the stream ended without {event} {fields}")


def payload_of(message: dict[str, Any]) -> bytes:
    """Return the payload of a message as it is shown."""
    return base64.b64decode(message["payload"])
