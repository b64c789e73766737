"""What a scenario does to a server, and the transcript of what the server answered."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from benchmarks.servers import ServerProcess
from tests.wire import CONNECT, Frame, Wire

SILENCE_S = 0.25  # how long "no answer" is waited for
ANSWER_S = 4.0
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
ACK_V1 = re.compile(r"(\$JS\.ACK\.[^.]+\.[^.]+\.\d+\.\d+\.\d+)\.\d+\.(\d+)")
FLOW = re.compile(r"(\$JS\.FC\.[^.]+\.[^.]+)\.\w+")
INBOX = re.compile(r"_INBOX\.w\d+(\.\d+)*")
ELAPSED_KEYS = {"pause_remaining", "active"}
TERMINAL_CODES = ("204", "400", "404", "408", "409", "412", "413", "423", "500", "503")


class Recorder:
    """One server seen by one scenario. Every call adds what it saw to `steps`."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.port = server.port
        self.wire = Wire(server.port)
        self.steps: list[tuple[str, Any]] = []
        self._ephemerals = 0
        self._names: dict[str, str] = {}  # random names the server chose -> stable ones
        for key in ("server_id", "server_name"):
            self._names[self.wire.info[key]] = "<server>"
        self._more: list[Wire] = []

    def note(self, label: str, seen: Any) -> Any:
        """Add one observation; JSON-shaped, made stable. Returns it as it was."""
        self.steps.append((label, self._stable(seen)))
        return seen

    def api(
        self,
        subject: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        is_quiet: bool = False,
    ) -> dict[str, Any]:
        """Request `$JS.API.<subject>`; bytes go as they are, other bodies as JSON."""
        data = body if isinstance(body, bytes) else b"" if body is None else _json(body)
        frames = self.wire.ask(f"$JS.API.{subject}", data, headers=headers, within_s=ANSWER_S)
        seen: Any = "no answer"
        if frames and frames[0].payload:
            seen = frames[0].json()
            name = seen.get("name")
            if subject.startswith("CONSUMER.CREATE") and name and f".{name}" not in subject:
                config = seen.get("config", {})
                if name not in (config.get("durable_name"), _asked_name(body)):
                    self._ephemerals += 1
                    self._names.setdefault(name, f"<ephemeral {self._ephemerals}>")
        elif frames:
            seen = self.frame(frames[0])
        if subject.startswith("STREAM.DELETE."):
            self._wait_until_removed()
        if not is_quiet:
            self.note(subject, seen)
        return seen if isinstance(seen, dict) else {}

    def pub(
        self,
        subject: str,
        payload: bytes = b"x",
        *,
        headers: dict[str, str] | bytes | None = None,
        is_quiet: bool = False,
        within_s: float = ANSWER_S,
    ) -> dict[str, Any]:
        """Publish with a reply; record the PubAck, the status, or the silence."""
        frames = self.wire.ask(subject, payload, headers=headers, within_s=within_s)
        seen: Any = "no answer"
        if frames:
            frame = frames[0]
            is_json = frame.payload.startswith(b"{") and not frame.headers
            seen = frame.json() if is_json else self.frame(frame)
        if not is_quiet:
            self.note(f"publish {subject}", seen)
        return seen if isinstance(seen, dict) else {}

    def fill(self, *subjects: str) -> None:
        """Publish one small message to each subject, unrecorded."""
        for number, subject in enumerate(subjects):
            self.pub(subject, b"m%d" % number, is_quiet=True)

    def pull(
        self,
        stream: str,
        consumer: str,
        body: Any = None,
        *,
        count: int = 0,
        within_s: float = ANSWER_S,
        headers: dict[str, str] | None = None,
    ) -> list[Frame]:
        """Send one pull request; record messages until `count` or a status that ends it."""
        data = body if isinstance(body, bytes) else b"" if body is None else _json(body)
        seen: list[Frame] = []

        def is_last(frame: Frame) -> bool:
            seen.append(frame)
            return frame.status[:3] in TERMINAL_CODES or bool(count and len(seen) >= count)

        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        frames = self.wire.ask(subject, data, headers=headers, within_s=within_s, is_last=is_last)
        self.note(f"pull {consumer} {data.decode(errors='replace')}", self.frames(frames))
        return frames

    def direct(self, stream: str, body: Any = None, *, subject: str = "") -> list[Frame]:
        """DIRECT.GET; records all messages up to the end of a batch."""
        data = body if isinstance(body, bytes) else b"" if body is None else _json(body)
        is_batch = isinstance(body, dict) and ("batch" in body or "multi_last" in body)
        target = f"$JS.API.DIRECT.GET.{stream}" + (f".{subject}" if subject else "")
        frames = self.wire.ask(
            target,
            data,
            within_s=ANSWER_S,
            is_last=lambda frame: not is_batch or bool(frame.status),
        )
        self.note(f"direct {subject or data.decode(errors='replace')}", self.frames(frames))
        return frames

    def ack(self, frame: Frame, kind: bytes = b"+ACK", *, is_double: bool = True) -> None:
        """Acknowledge; a double ack records whether the server confirmed."""
        if is_double:
            answer = self.wire.ask(frame.reply, kind, within_s=2.0)
            self.note(f"ack {kind.decode()}", self.frames(answer))
        else:
            self.wire.publish(frame.reply, kind)

    def collect(self, label: str, count: int, *, within_s: float = ANSWER_S) -> list[Frame]:
        """Record the next `count` frames of the main connection."""
        return self.note_frames(label, self.wire.collect(count=count, within_s=within_s))

    def silent(self, label: str, *, within_s: float = SILENCE_S) -> None:
        """Record that nothing comes (or what does)."""
        self.note_frames(label, self.wire.collect(count=1, within_s=within_s))

    def note_frames(self, label: str, frames: list[Frame]) -> list[Frame]:
        self.note(label, self.frames(frames))
        return frames

    def connect(self, connect: dict[str, Any] | None = CONNECT, *, is_ready: bool = True) -> Wire:
        """Another connection of this scenario."""
        wire = Wire(self.port, connect, is_ready=is_ready)
        self._more.append(wire)
        return wire

    def raw(self, label: str, data: bytes, *, connect: dict[str, Any] | None = CONNECT) -> None:
        """Send bytes on a fresh connection and record all that follows, and whether it closed.

        A PING is sent after them, so that the answer has an end.
        """
        wire = self.connect(connect, is_ready=False)
        wire.send(data + b"PING\r\n")
        frames: list[Frame] = []
        while True:
            try:
                frame = wire.next(2.0)
            except TimeoutError:
                break
            frames.append(frame)
            if frame.op == "CLOSED":
                break
            if frame.op == "PONG":
                frames += wire.collect(count=1, within_s=0.05)
                break
        self.note_frames(label, frames)

    def http(self, path: str, keep: Callable[[Any], Any] | None = None) -> Any:
        """GET from the monitoring port; records the status and `keep(body)`."""
        url = f"http://127.0.0.1:{self.server.http_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as err:
            status, text = err.code, err.read()
        try:
            body: Any = json.loads(text)
        except ValueError:
            body = text.decode(errors="replace")
        self.note(f"GET {path}", {"status": status, "body": keep(body) if keep else body})
        return body

    def disturb(self, chance: float) -> None:
        """Do to the server what its clients should not notice; nothing here (see disturbed.py)."""

    def wait_until(self, is_true: Callable[[], bool], within_s: float = 10.0) -> None:
        """Poll for something that happens a little later; records nothing."""
        deadline = time.monotonic() + within_s
        while not is_true() and time.monotonic() < deadline:
            time.sleep(0.01)

    def frame(self, frame: Frame) -> dict[str, Any]:
        """A frame as comparable JSON."""
        if frame.op != "MSG":
            return {"op": frame.op, "text": "" if frame.op == "INFO" else frame.text}
        seen: dict[str, Any] = {"subject": frame.subject}
        if frame.reply:
            seen["reply"] = frame.reply
        if frame.headers:
            seen["status"] = frame.status
            seen["headers"] = frame.pairs
        body = frame.payload.decode(errors="replace")
        if body.startswith("{"):
            try:
                return seen | {"payload": json.loads(body)}
            except ValueError:
                pass
        return seen | {"payload": body}

    def frames(self, frames: list[Frame]) -> list[dict[str, Any]]:
        return [self.frame(frame) for frame in frames]

    def _stable(self, seen: Any) -> Any:
        if isinstance(seen, dict):
            return {
                self._stable(key): (
                    "<ns>"
                    if key in ELAPSED_KEYS and isinstance(value, int)
                    else self._stable(value)
                )
                for key, value in seen.items()
            }
        if isinstance(seen, list | tuple):
            return [self._stable(value) for value in seen]
        if not isinstance(seen, str):
            return seen
        for name, stable in self._names.items():
            seen = seen.replace(name, stable)
        seen = TIME.sub(lambda at: at[0] if at[0].startswith("0001-01-01") else "<time>", seen)
        seen = ACK_V1.sub(r"\1.<ts>.\2", seen)
        seen = FLOW.sub(r"\1.<flow>", seen)
        return INBOX.sub("<inbox>", seen)

    def close(self) -> None:
        """Delete all streams and close the connections."""
        for wire in self._more:
            wire.close()
        self.wire.close()
        with Wire(self.port) as wire:
            for name in wire.api("STREAM.NAMES").get("streams") or []:
                wire.api(f"STREAM.DELETE.{name}")
                self._wait_until_removed()

    def _wait_until_removed(self) -> None:
        """The peer moves a deleted stream to `.NAME` and removes that a little later. While it is
        there the next one of that name can't be moved, and whoever is created then finds its
        messages again."""
        streams = self.server.store_dir / "jetstream" / "$G" / "streams"

        def is_removed() -> bool:
            try:
                return not any(name.startswith(".") for name in os.listdir(streams))
            except FileNotFoundError:
                return True

        self.wait_until(is_removed)


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


def _asked_name(body: Any) -> str:
    config = body.get("config", {}) if isinstance(body, dict) else {}
    name: str = config.get("name", "") if isinstance(config, dict) else ""
    return name
