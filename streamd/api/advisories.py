"""Advisories and metrics: JSON messages that tell whoever listens what happened.

Best effort, core NATS, made only if somebody listens. What they report comes from applied entries
(`on_stream_event`), from the leader's own observations through the same door, and from the API.
"""

from __future__ import annotations

import json
import secrets
import string
from typing import Final, Protocol

from streamd import limits
from streamd.api import times
from streamd.api.cluster_infos import replica_rows, short_hash
from streamd.api.remote_client import ClientFacts
from streamd.machine import message_headers
from streamd.machine.streams import producers
from streamd.node.ports import Clock, NodeHandle, StreamHandle, Wires
from streamd.subject_mapping import SubjectTransform
from streamd.types import META_UID, Document, Uid

_PREFIX: Final = "$JS.EVENT.ADVISORY."
_TYPE: Final = "io.nats.jetstream.advisory.v1."
_OWN_TYPE: Final = "io.streamd.jetstream.advisory.v1."
_AUDIT: Final = b"$JS.EVENT.ADVISORY.API"
_ALPHABET: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_LENGTH: Final = 22
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

# Event kind -> (subject before the stream and consumer names, type, fields in order).
_CONSUMER_EVENTS: Final[dict[str, tuple[str, str, tuple[str, ...]]]] = {
    "consumer_max_deliver": (
        "CONSUMER.MAX_DELIVERIES",
        "max_deliver",
        ("stream_seq", "deliveries"),
    ),
    "consumer_naked": (
        "CONSUMER.MSG_NAKED",
        "nak",
        ("consumer_seq", "stream_seq", "deliveries"),
    ),
    "consumer_terminated": (
        "CONSUMER.MSG_TERMINATED",
        "terminated",
        ("consumer_seq", "stream_seq", "deliveries", "reason"),
    ),
    "consumer_pinned": ("CONSUMER.PINNED", "consumer_group_pinned", ("group", "pinned_id")),
    "consumer_unpinned": ("CONSUMER.UNPINNED", "consumer_group_unpinned", ("group", "reason")),
}


class ApiClient(ClientFacts, Protocol):
    """The client that made a request, as far as the API asks and tells it anything."""

    def may_administer(self, subject: bytes) -> bool:
        """Return True if the client may have the whole cluster changed."""

    def forbid_publish(self, subject: bytes) -> None:
        """Tell the client that it may not publish on `subject`."""


class Advisories:
    """Makes the advisories of one account and publishes them there, from the server itself."""

    def __init__(
        self, node: NodeHandle, account: str, wires: Wires, clock: Clock, domain: str
    ) -> None:
        self._node = node
        self._account = account
        self._wires = wires
        self._clock = clock
        self._domain = domain
        self._transforms: dict[tuple[str, str], SubjectTransform] = {}

    # --- what streams and consumers report ------------------------------------------------------

    def on_stream_event(self, handle: StreamHandle, kind: str, fields: Document) -> None:
        """Publish what follows from one event of a stream's machine or leader; most are advisories,
        but a republished message is a message."""
        if kind == "republish":
            self._republish(handle, fields)
        elif kind in _CONSUMER_EVENTS:
            self._consumer_event(handle.name, kind, fields)
        elif kind == "consumer_ack":
            self._ack_metric(handle.name, fields)
        elif kind == "consumer_created":
            self.consumer_action("CREATED", "create", handle.name, fields["consumer"])
        elif kind == "consumer_deleted":
            self.consumer_action("DELETED", "delete", handle.name, fields["consumer"])
        elif kind == "consumer_paused":
            self.consumer_paused(handle.name, fields["consumer"], fields.get("until_ns", 0))
        elif kind == "leader_elected":
            self._leader_elected(handle)
        elif kind == "write_quorum":
            names = {"stream": handle.name}
            subject = f"STREAM.WRITE_QUORUM.{handle.name}"
            self._write_quorum(subject, "stream_write_quorum", names, handle.uid, fields)
        elif kind == "batch_abandoned":
            self._publish(
                f"STREAM.BATCH_ABANDONED.{handle.name}",
                "stream_batch_abandoned",
                {"stream": handle.name, "batch": fields["batch"], "reason": fields["reason"]},
            )

    def _leader_elected(self, handle: StreamHandle) -> None:
        """This node leads a replicated stream from now on. All members are named, itself too."""
        facts = self._node.group_info(handle.uid) or {}
        leader = self._node.server_name
        others = replica_rows(facts)
        if others:
            own = {"name": leader, "current": True, "active": 0, "peer": short_hash(leader)}
            replicas = sorted([own, *others], key=lambda row: str(row["name"]))
            self._publish(
                f"STREAM.LEADER_ELECTED.{handle.name}",
                "stream_leader_elected",
                {"stream": handle.name, "leader": leader, "replicas": replicas},
            )

    def on_meta_event(self, kind: str, fields: Document) -> None:
        """Publish what this node, as its leader, has seen of the meta group."""
        self._write_quorum("DOMAIN.WRITE_QUORUM", "domain_write_quorum", {}, META_UID, fields)

    def _write_quorum(
        self, subject: str, type_name: str, names: Document, uid: Uid, fields: Document
    ) -> None:
        """A group's acks come to be on fewer disks than a majority of the replicas asked for, or on
        enough again. nats-server, whose replicas all vote at once, has no such advisory."""
        body = {**names, "leader": self._node.server_name}
        body["replicas"] = replica_rows(self._node.group_info(uid) or {})
        self._publish(subject, type_name, body | fields, prefix=_OWN_TYPE)

    def stream_action(self, subject: str, action: str, stream: str) -> None:
        """A stream was made, changed or deleted."""
        self._publish(
            f"STREAM.{subject}.{stream}", "stream_action", {"stream": stream, "action": action}
        )

    def snapshot_created(self, stream: str, state: Document, client: ClientFacts | None) -> None:
        """A stream is about to be sent as an archive."""
        body = {"stream": stream, "state": state, "client": self._client(client)}
        self._publish(f"STREAM.SNAPSHOT_CREATE.{stream}", "snapshot_create", body)

    def snapshot_completed(
        self, stream: str, start_ns: int, error: str, client: ClientFacts | None
    ) -> None:
        """A stream was sent as an archive, or not all of it."""
        body = {"stream": stream} | self._span(start_ns) | {"client": self._client(client)}
        if error:
            body["error"] = error
        self._publish(f"STREAM.SNAPSHOT_COMPLETE.{stream}", "snapshot_complete", body)

    def restore_created(self, stream: str, client: ClientFacts | None) -> None:
        """An archive is about to be read into a new stream."""
        body = {"stream": stream, "client": self._client(client)}
        self._publish(f"STREAM.RESTORE_CREATE.{stream}", "restore_create", body)

    def restore_completed(
        self, stream: str, start_ns: int, byte_count: int, client: ClientFacts | None
    ) -> None:
        """A stream was made of an archive of so many bytes."""
        span = self._span(start_ns)
        body = {"stream": stream, **span, "bytes": byte_count, "client": self._client(client)}
        self._publish(f"STREAM.RESTORE_COMPLETE.{stream}", "restore_complete", body)

    def _span(self, start_ns: int) -> Document:
        now_ns = self._clock.now_ns()
        return {"start": times.format_ns(start_ns), "end": times.format_ns(now_ns)}

    def consumer_action(self, subject: str, action: str, stream: str, consumer: str) -> None:
        """A consumer was made or deleted."""
        self._publish(
            f"CONSUMER.{subject}.{stream}.{consumer}",
            "consumer_action",
            {"stream": stream, "consumer": consumer, "action": action},
        )

    def consumer_paused(self, stream: str, consumer: str, until_ns: int) -> None:
        """A consumer was paused, or resumed (`until_ns` not in the future)."""
        self._publish(
            f"CONSUMER.PAUSE.{stream}.{consumer}",
            "consumer_pause",
            {
                "stream": stream,
                "consumer": consumer,
                "paused": until_ns > self._clock.now_ns(),
                "pause_until": times.format_ns(until_ns),
            },
        )

    def _consumer_event(self, stream: str, kind: str, fields: Document) -> None:
        subject, type_name, wanted = _CONSUMER_EVENTS[kind]
        body = {"stream": stream, "consumer": fields["consumer"]}
        if "group" in wanted:
            body = {"account": self._account} | body
        body |= {field: fields[field] for field in wanted if fields.get(field, "") != ""}
        self._publish(f"{subject}.{stream}.{fields['consumer']}", type_name, body)

    def _ack_metric(self, stream: str, fields: Document) -> None:
        subject = f"$JS.EVENT.METRIC.CONSUMER.ACK.{stream}.{fields['consumer']}"
        body = {
            "stream": stream,
            "consumer": fields["consumer"],
            "consumer_seq": fields["consumer_seq"],
            "stream_seq": fields["stream_seq"],
            "ack_time": fields["ack_time"],
            "deliveries": fields["deliveries"],
        }
        self._send(subject, "io.nats.jetstream.metric.v1.consumer_ack", body)

    def _republish(self, handle: StreamHandle, fields: Document) -> None:
        config = handle.machine.config["republish"]
        if not config or not config["dest"]:
            return  # configured away between apply and now
        key = (config["src"], config["dest"])
        transform = self._transforms.get(key)
        if transform is None:
            if len(self._transforms) >= limits.TRANSFORM_CACHE_MAX:
                self._transforms.clear()
            source, destination = key[0].encode(), key[1].encode()
            transform = SubjectTransform(source, destination, secrets.randbelow)
            self._transforms[key] = transform
        subject = transform.apply(fields["subject"])
        if subject is None or not self._wires.has_interest(subject):
            return
        headers, payload = fields["headers"], fields["payload"]
        if producers.HEADS in headers:  # of what the producer sent to this stream, not to others
            headers = message_headers.without_heads(headers, producers.HEADS)
        block = (
            b"%bNats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\n"
            b"Nats-Time-Stamp: %b\r\nNats-Last-Sequence: %d\r\n"
            % (
                headers[:-2] if headers else b"NATS/1.0\r\n",
                handle.name_bytes,
                fields["subject"],
                fields["seq"],
                times.format_ns(fields["ts"]).encode(),
                fields["last_seq"],
            )
        )
        if config.get("headers_only"):
            block += b"Nats-Msg-Size: %d\r\n" % len(payload)
            payload = b""
        self._wires.publish(subject, b"", block + b"\r\n", payload)

    # --- the API itself -------------------------------------------------------------------------

    def audit(
        self, client: ClientFacts | None, subject: bytes, payload: bytes, response: bytes
    ) -> None:
        """Report a served API request with its response."""
        if not self._wires.has_interest(_AUDIT):
            return
        body: Document = {
            "server": self._node.server_name,
            "client": self._client(client),
            "subject": subject.decode("utf-8", "replace"),
        }
        if payload:
            body["request"] = payload.decode("utf-8", "replace")
        body["response"] = response.decode("utf-8", "replace")
        self._publish("API", "api_audit", body)

    def limit_reached(self, dropped: int) -> None:
        """Report that requests were dropped because too many wait."""
        body = {"server": self._node.server_name, "dropped": dropped}
        self._publish("API.LIMIT_REACHED", "api_limit_reached", body)

    def server_removed(self, server: str, server_id: str) -> None:
        """Report that a server left the cluster for good; no id: it was not met in this life."""
        body = {"server": server, "server_id": server_id, "cluster": self._node.cluster_name}
        self._publish("SERVER.REMOVED", "server_removed", body)

    def meta_rescued(self, server_id: str, before: int, quorum: int) -> None:
        """Report that this server takes fewer servers than before for enough to decide."""
        node = self._node
        place = {"server": node.server_name, "server_id": server_id, "cluster": node.cluster_name}
        body = place | {"prev_quorum": before, "new_quorum": quorum}
        self._publish("SERVER.META_RESCUE", "meta_rescue", body)

    def _client(self, client: ClientFacts | None) -> Document:
        """Return the ClientInfo of who asked, in the order of nats-server's fields."""
        node = self._node
        server = getattr(client, "server", node.server_name)  # another node's, if it says so
        place = {"server": server} | ({"cluster": node.cluster_name} if node.is_clustered else {})
        if client is None:
            return {"acc": self._account} | place | {"kind": "Client"}
        shown: Document = {
            "start": times.format_ns(client.start_ns),
            "host": client.ip,
            "id": client.cid,
            "acc": self._account,
        }
        for field, value in (
            ("user", client.user),
            ("name", client.name),
            ("lang", client.lang),
            ("ver", client.version),
        ):
            if value:
                shown[field] = value
        return shown | {"rtt": client.rtt_ns} | place | {"kind": "Client", "client_type": "nats"}

    # --- publishing -----------------------------------------------------------------------------

    def _publish(
        self, subject: str, type_name: str, body: Document, *, prefix: str = _TYPE
    ) -> None:
        if self._domain:
            body = body | {"domain": self._domain}
        self._send(_PREFIX + subject, prefix + type_name, body)

    def _send(self, subject: str, type_name: str, body: Document) -> None:
        where = subject.encode()
        if not self._wires.has_interest(where):
            return
        envelope = {
            "type": type_name,
            "id": "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH)),
            "timestamp": times.format_ns(self._clock.now_ns()),
        }
        document = _encode(envelope | body).encode("utf-8", "replace")
        self._wires.publish(where, b"", b"", document)
