"""Two real servers joined by a leaf link, and clients of both. For tests only."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.servers import ServerProcess, free_port
from tests.waiting import until
from tests.wire import Frame, Wire

JETSTREAM = 'jetstream {{ store_dir: "{directory}/js", domain: {domain} }}'
WITHIN_S = 20.0


def page(server: ServerProcess, path: str) -> dict[str, Any]:
    """Return a document of monitoring."""
    url = f"http://127.0.0.1:{server.http_port}/{path}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        document: dict[str, Any] = json.load(answer)
    return document


class Sides(NamedTuple):
    """Extra lines of both configurations; `listener` and `remote` are members of those blocks."""

    hub: str = ""
    leaf: str = ""
    listener: str = ""
    remote: str = ""
    url: str = "nats-leaf://127.0.0.1:{port}"


class LeafPair:
    """A hub and its leaf node. `binaries` are of these two."""

    def __init__(
        self,
        binaries: tuple[str, str],
        directory: Path,
        sides: Sides = Sides(),  # noqa: B008
        *,
        has_jetstream: bool = False,
        modes: tuple[str, str] = ("off", "off"),
    ) -> None:
        """`modes`: of compression, at the hub and at the leaf node."""
        self.leaf_port = free_port()
        texts = [
            f'server_name: HUB\n{sides.hub}\nleafnodes {{ listen: "127.0.0.1:{self.leaf_port}",'
            f" compression: {modes[0]}\n{sides.listener} }}",
            f'server_name: LEAF\n{sides.leaf}\nleafnodes {{ reconnect: "1s", remotes: [ {{ url:'
            f' "{sides.url.format(port=self.leaf_port)}", compression: {modes[1]}\n{sides.remote}'
            " } ] }",
        ]
        self.servers = []
        for name, binary, text in zip(("hub", "leaf"), binaries, texts, strict=True):
            if has_jetstream:
                text += "\n" + JETSTREAM.format(directory=directory / name, domain=name)
            self.servers.append(
                ServerProcess(binary, directory=directory / name, extra=text, is_jetstream=False)
            )
        self.hub, self.leaf = self.servers

    def start(self, *, is_joined: bool = True) -> LeafPair:
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait()
        if is_joined:
            self.wait_joined()
        return self

    def wait_joined(self, count: int = 1) -> None:
        """Wait until both ends show so many links."""
        for server in self.servers:
            until(lambda s=server: page(s, "leafz")["leafnodes"] == count, "a leaf link")  # type: ignore[misc]

    def close(self) -> None:
        for server in self.servers:
            server.close()


class Ends:
    """A client of the publisher's server and one of the receiver's."""

    def __init__(self, sender: Wire, receiver: Wire) -> None:
        self.sender = sender
        self.receiver = receiver
        self._sync_count = 0

    def sync(self) -> None:
        """Wait until the sender's server knows all interest of the receiver."""
        self._sync_count += 1
        subject = f"sync.{id(self)}.{self._sync_count}"
        sid = self.receiver.subscribe(subject)
        self.receiver.fence()
        deadline = time.monotonic() + WITHIN_S
        is_known = False
        while not is_known:
            assert time.monotonic() < deadline, "interest did not cross"
            self.sender.publish(subject)
            self.sender.fence()
            try:
                is_known = self.receiver.next(0.02).subject == subject
            except TimeoutError:
                continue
        self.receiver.unsubscribe(sid)
        self.receiver.fence()

    def arrived(self) -> list[Frame]:
        """Return all that the receiver got of what was published so far."""
        self._sync_count += 1
        subject = f"last.{id(self)}.{self._sync_count}"
        sid = self.receiver.subscribe(subject)
        found = self.receiver.fence()
        deadline = time.monotonic() + WITHIN_S
        while not any(frame.subject == subject for frame in found):
            assert time.monotonic() < deadline, "the last message did not cross"
            self.sender.publish(subject)
            self.sender.fence()
            try:
                found.append(self.receiver.next(0.05))
            except TimeoutError:
                continue
            found += self.receiver.fence()
        self.receiver.unsubscribe(sid)
        self.receiver.fence()
        return [frame for frame in found if not frame.subject.startswith(("last.", "sync."))]


def shown(frames: list[Frame]) -> list[tuple[str, str, bytes, bytes]]:
    """Return what two servers must agree on."""
    return sorted((frame.subject, frame.reply, frame.headers, frame.payload) for frame in frames)
