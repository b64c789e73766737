"""`STREAM.RESTORE.<stream>`: a stream comes back from an archive that the client uploads.

    request: the meta leader makes the stream, `restoring`: nobody sees it, its subjects are taken
        |
    its leader listens for chunks --> records --> IMPORT ... IMPORT_CONSUMER, through the log
        |                                   a few entries are under way; then a chunk is answered
    empty chunk: the end --> the meta group says that it is `restoring` no more: now it exists

Until that last entry is committed any failure deletes the stream: the client's chunks end or are
damaged, the leader changes, a node stops. What nobody uploads into any more is found by whoever
leads the stream (`Restores.sweep`). After it nothing can take the stream away again.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Final, cast

from streamd import errors, limits
from streamd.api import (
    account_limits,
    decoding,
    infos,
    restored_consumers,
    shapes,
    stream_configs,
)
from streamd.api.advisories import ApiClient
from streamd.api.cluster_infos import led_stream
from streamd.api.decoding import decode
from streamd.api.remote_client import client_of, facts_of
from streamd.api.request import ANSWER, ApiContext, Request, ServerContext, to_json
from streamd.archives import message_archive
from streamd.archives.archive_reader import ArchiveReader
from streamd.archives.archive_records import (
    ArchivedConfig,
    ArchivedConsumer,
    ArchivedEnd,
    ArchivedMessages,
    ArchivedRemoval,
    ArchivedState,
    ArchiveError,
    Record,
    Row,
)
from streamd.errors import JsError
from streamd.machine import commands, message_headers
from streamd.machine.asset_configs import ConsumerConfig, StreamConfig
from streamd.machine.commands import Command
from streamd.machine.meta import StreamAsset
from streamd.machine.streams.publish import RECORD_BYTES_MAX, TTL
from streamd.node.cluster import placement
from streamd.node.ports import Answer, Done, StreamHandle
from streamd.subjects import is_literal, is_valid
from streamd.types import Document, NodeId, Seq, Uid

BEGIN: Final = "api.restore"
"""Call to a new stream's leader: [account, uid, reply, origin, client]: answer the client, which is
at the node `origin`, and take the upload. Answered with that answer."""
DONE: Final = "api.restored"
"""Call to the meta leader: [uid]: the stream is whole."""
FAILED: Final = "api.restore_failed"
"""Call to the meta leader: [uid]: the stream is to go, unless it was told to be whole."""
CALLS: Final = (BEGIN, DONE, FAILED)

_NEVER: Final = -(1 << 63)  # as a time
_TYPE: Final = "io.nats.jetstream.api.v1."


# --- the request --------------------------------------------------------------------------------


def restore(request: Request) -> None:
    """Serve the request at the node that leads the meta group."""
    if decoding.is_empty_request(request.payload):
        raise errors.BAD_REQUEST()
    wanted = decode(request.payload, shapes.STREAM_RESTORE)
    context, name = request.context, request.names[0]
    given = cast(StreamConfig, wanted.get("config", {}))
    if given.get("name", "") != name:
        raise errors.STREAM_MISMATCH()
    if context.asset(name) is not None:
        raise errors.STREAM_NAME_EXIST_RESTORE_FAILED()
    config = stream_configs.normalise(
        given, duplicate_window_max_ns=context.asset_limits.duplicate_window_ns_max
    )
    account_limits.check_config(context, config)
    account_limits.check_count(context, config)
    account_limits.check_room(context, config)
    state = wanted.get("state", {})
    account_limits.check_stored(context, config, state.get("bytes", 0))
    config = stream_configs.owned(config, context.account)
    config = stream_configs.restored(config, is_whole=False)
    if context.node.meta.overlaps(config):
        raise errors.STREAM_SUBJECT_OVERLAP()
    peers: list[NodeId] | None = None
    if context.is_clustered:
        peers = placement.ClusterView.seen_by(context.node).choose(config, may_be_down=True)
    elif config["num_replicas"] > 1:
        raise errors.STREAM_REPLICAS_NOT_SUPPORTED()
    bounds = account_limits.bounds(context, config)
    command = [commands.CREATE_STREAM, context.clock.now_ns(), config, peers, *bounds]
    request.propose_meta(command, lambda asset: _made(request, asset))


def _made(request: Request, asset: StreamAsset) -> None:
    context = request.context

    def configured(outcome: object) -> None:
        if isinstance(outcome, JsError):
            _undo(context.server, asset.uid, lambda _: request.refuse(outcome))
        else:
            _begin_at_leader(request, asset)

    if context.is_clustered:
        timeout_ms = limits.API_CONFIGURED_MS
        context.node.wait_configured(asset.uid, asset.update_index, configured, timeout_ms)
    else:
        configured(True)


def _begin_at_leader(request: Request, asset: StreamAsset) -> None:
    context, node = request.context, request.context.node

    def begun(outcome: object) -> None:
        if isinstance(outcome, bytes):
            request.answered(outcome)
        else:
            error = outcome if isinstance(outcome, JsError) else errors.CLUSTER_NOT_AVAIL()
            _undo(context.server, asset.uid, lambda _: request.refuse(error))

    origin = request.origin or node.server_name
    facts = facts_of(request.client, origin) if request.client is not None else []
    args = [context.account, asset.uid, request.reply, origin, facts]
    leader = node.leader_of(asset.uid) if context.is_clustered else node.server_name
    if leader == node.server_name:
        assert context.server.restores is not None
        context.server.restores.serve(BEGIN, args, begun)
    elif leader and node.peers is not None:
        node.peers.call(leader, BEGIN, args, begun, limits.API_CALL_MS)
    else:
        begun(errors.CLUSTER_NOT_AVAIL())


def _undo(server: ServerContext, uid: Uid, done: Done) -> None:
    """Delete a stream that did not become whole, at the node that leads the meta group."""
    asset = server.node.meta.streams_by_uid.get(uid)
    if asset is None:
        done(True)
        return
    now_ns = server.clock.now_ns()
    server.node.propose_meta([commands.DELETE_STREAM, now_ns, asset.name, uid, True], done)


# --- all uploads of a node ------------------------------------------------------------------------


class Restores:
    """Uploads into streams that this node leads."""

    def __init__(self, server: ServerContext, context_of: Callable[[str], ApiContext]) -> None:
        self._server = server
        self._context_of = context_of
        self._uploads: dict[Uid, Upload] = {}
        self._has_timer = False

    def serve(self, method: str, args: list[object], answer: Answer) -> None:
        """Answer a call of another node: one of CALLS."""
        server = self._server
        if method == BEGIN:
            self._begin_soon(args, answer, server.clock.monotonic_ms() + limits.API_EARLY_MS)
            return
        (uid,) = cast(tuple[Uid], tuple(args))
        if not server.node.is_meta_leader and server.node.is_clustered:
            answer(errors.CLUSTER_NOT_AVAIL())
        elif method == FAILED:
            _undo(server, uid, lambda outcome: answer(not isinstance(outcome, JsError)))
        else:
            self._end(uid, answer)

    def _end(self, uid: Uid, answer: Answer) -> None:
        """Propose to the meta group that a stream is whole."""
        server = self._server
        asset = server.node.meta.streams_by_uid.get(uid)
        if asset is None:
            answer(errors.STREAM_NOT_FOUND())
            return
        config = stream_configs.restored(asset.config, is_whole=True)
        command = [commands.UPDATE_STREAM, server.clock.now_ns(), asset.name, config]
        server.node.propose_meta(
            command, lambda outcome: answer(outcome if isinstance(outcome, JsError) else True)
        )

    def _begin_soon(self, args: list[object], answer: Answer, until_ms: int) -> None:
        """Begin an upload. That the stream has a leader is known a moment before clients find it
        here."""
        server = self._server
        try:
            answer(self._begin(*args))  # type: ignore[arg-type]
        except errors.Unserved as err:
            if server.clock.monotonic_ms() < until_ms:
                server.later(limits.API_ANSWER_LOOK_S, self._begin_soon, args, answer, until_ms)
            else:
                answer(err)
        except JsError as err:
            answer(err)

    def _begin(
        self, account: str, uid: Uid, reply: bytes, origin: NodeId, facts: list[object]
    ) -> bytes:
        node, context = self._server.node, self._context_of(account)
        handle = led_stream(node, uid)
        if handle is None or not handle.config.get("restoring"):
            raise errors.Unserved()
        if len(self._uploads) >= limits.RESTORES_MAX:
            raise errors.STREAM_RESTORE(err=f"{limits.RESTORES_MAX} streams are being restored")
        upload = Upload(self, context, handle, client_of(facts))
        self._uploads[uid] = upload
        answer = {
            "type": _TYPE + "stream_restore_response",
            "deliver_subject": upload.subject.decode(),
        }
        body = to_json(answer)
        peers = node.peers
        if peers is not None and origin != node.server_name and peers.is_up(origin):
            # Behind the word that the upload's subject has interest, on the same link.
            peers.note(origin, ANSWER, [account, reply, b"", body])
        elif reply:
            context.wires.publish(reply, b"", b"", body)
        return body

    # --- the end of one -------------------------------------------------------------------------

    def close(self, uid: Uid, is_whole: bool, done: Done) -> None:
        """End an upload: the stream comes into being, or goes. `done` gets True or a JsError."""
        self._tell_meta(DONE if is_whole else FAILED, uid, done, self._deadline_ms())

    def forget(self, uid: Uid) -> None:
        """Note that an upload is over."""
        self._uploads.pop(uid, None)

    def _deadline_ms(self) -> int:
        return self._server.clock.monotonic_ms() + limits.RESTORE_END_MS

    def _tell_meta(self, method: str, uid: Uid, done: Done, until_ms: int) -> None:
        """Call the meta leader, whoever that is, until it answers or time is over."""
        node, server = self._server.node, self._server

        def answered(outcome: object) -> None:
            is_again = isinstance(outcome, JsError) and outcome == errors.CLUSTER_NOT_AVAIL()
            if is_again and server.clock.monotonic_ms() < until_ms:
                server.later(limits.API_RETRY_MS / 1000, again)
            else:
                done(outcome)

        def again() -> None:
            self._tell_meta(method, uid, done, until_ms)

        if node.is_meta_leader or not node.is_clustered:
            self.serve(method, [uid], answered)
        elif node.meta_leader and node.peers is not None:
            timeout_ms = limits.API_CONFIGURED_MS * 2
            node.peers.call(node.meta_leader, method, [uid], answered, timeout_ms)
        else:
            answered(errors.CLUSTER_NOT_AVAIL())

    # --- what nobody uploads into ---------------------------------------------------------------

    def watch(self) -> None:
        """Look for abandoned streams in a while."""
        if not self._has_timer:
            self._has_timer = True
            self._server.later(limits.RESTORE_ABANDONED_MS / 1000, self.sweep)

    def sweep(self) -> None:
        """Delete streams that this node leads, that are being restored, and by nobody."""
        self._has_timer = False
        node = self._server.node
        found = [
            handle
            for handle in node.streams()
            if handle.is_local
            and handle.config.get("restoring")
            and handle.uid not in self._uploads
        ]
        for handle in found:
            self._tell_meta(FAILED, handle.uid, lambda _: None, self._deadline_ms())
        if found:
            self.watch()  # until they are gone


# --- one upload -----------------------------------------------------------------------------------


class Upload:
    """Archive on its way into the stream that this node leads."""

    def __init__(
        self,
        restores: Restores,
        context: ApiContext,
        handle: StreamHandle,
        client: ApiClient | None,
    ) -> None:
        self._restores = restores
        self._context = context
        self._handle = handle
        self._client = client
        self._later = context.server.later
        self._reader = ArchiveReader()
        self._records: Iterator[Record] | None = None  # of the chunk that is being read
        self._chunks: deque[tuple[bytes, bytes]] = deque()  # (reply, bytes)
        self._waiting_bytes = 0
        self._received_bytes = 0
        self._reply = b""  # of the chunk that is being read
        self._rows: list[Row] = []
        self._rows_bytes = 0
        self._last_seq: Seq = 0
        self._consumers: list[ArchivedConsumer] = []
        self._removals: list[Seq] = []  # ranges, flat
        self._under_way = 0  # commands
        self._under_way_bytes = 0  # that their messages will count
        self._steps: Iterator[bool] | None = None  # of the end
        self._is_over = False
        self._heard_ms = context.clock.monotonic_ms()
        self._start_ns = context.clock.now_ns()
        token = secrets.token_hex(11)
        self.subject = f"$JS.SNAPSHOT.RESTORE.{handle.name}.{token}".encode()
        self._listening = context.wires.listen(self.subject, self._on_chunk)
        self._later(limits.RESTORE_IDLE_MS / 1000, self._check_idle)
        context.advisories.restore_created(handle.name, client)

    # --- chunks ---------------------------------------------------------------------------------

    def _on_chunk(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, client: object
    ) -> None:
        if self._is_over:
            return
        self._heard_ms = self._context.clock.monotonic_ms()
        if not reply:
            self._fail("a chunk came without a reply subject")
            return
        self._received_bytes += len(payload)
        self._waiting_bytes += len(payload)
        self._chunks.append((reply, payload))
        if self._waiting_bytes > limits.RESTORE_WAITING_BYTES_MAX:
            self._fail(
                f"{self._waiting_bytes} bytes came before chunks were answered, "
                f"{limits.RESTORE_WAITING_BYTES_MAX} are allowed"
            )
            return
        self._pump()

    def _pump(self) -> None:
        """Read chunks as long as not too many commands are under way."""
        try:
            while not self._is_over and self._under_way < limits.RESTORE_COMMANDS_MAX:
                if self._steps is not None:
                    if next(self._steps, True):
                        return
                    continue  # what it proposed may already be too much
                if self._records is not None:
                    self._read_on(self._records)
                elif self._chunks:
                    self._begin_chunk()
                else:
                    return
        except ArchiveError as err:
            self._fail(str(err))
        except JsError as err:
            no_room = account_limits.exceeded(self._handle.config["storage"])
            self._fail(err.description, err if err == no_room else None)

    def _begin_chunk(self) -> None:
        self._reply, payload = self._chunks.popleft()
        self._waiting_bytes -= len(payload)
        if payload:
            self._records = self._reader.feed(payload)
        else:
            self._steps = self._finish()

    def _read_on(self, records: Iterator[Record]) -> None:
        """Take one record of the chunk, or answer it after the last."""
        record = next(records, None)
        if record is not None:
            self._take(record)
            return
        self._records = None
        self._context.wires.publish(self._reply, b"", b"", b"")
        self._reply = b""

    def _take(self, record: Record) -> None:
        if isinstance(record, ArchivedMessages):
            self._take_rows(record.rows)
        elif isinstance(record, ArchivedConsumer):
            self._consumers.append(record)
        elif isinstance(record, ArchivedRemoval):
            self._removals += (record.first, record.last)
        elif isinstance(record, ArchivedEnd):
            self._last_seq = max(self._last_seq, record.last_seq)
        elif isinstance(record, ArchivedState):
            account_limits.check_stored(self._context, self._handle.config, record.byte_count)
            self._last_seq = record.first_seq - 1
        elif isinstance(record, ArchivedConfig):
            if message_archive.folded(record.config).get("name") != self._handle.name:
                raise ArchiveError("stream names do not match")

    def _take_rows(self, rows: Sequence[Row]) -> None:
        config, now_ns = self._handle.config, self._context.clock.now_ns()
        body_max, ttls = config["max_msg_size"], config["allow_msg_ttl"]
        oldest_ts = now_ns - config["max_age"] if config["max_age"] > 0 else _NEVER
        for row in rows:
            seq, ts, subject, headers, payload = row
            if not _is_of_message(subject):
                raise ArchiveError(f"message sequence {seq} has no subject")
            body = len(headers) + len(payload)
            size = len(subject) + body
            if 0 <= body_max < body or size > RECORD_BYTES_MAX:
                raise ArchiveError(f"message sequence {seq} exceeds maximum message size")
            self._last_seq = seq
            if ttls and TTL in headers:
                if _is_expired(headers, ts, now_ns, oldest_ts):
                    continue
            elif ts <= oldest_ts:
                continue
            self._rows.append(row)
            self._rows_bytes += size + limits.ENTRY_OVERHEAD_BYTES
            if self._rows_bytes >= limits.RESTORE_COMMAND_BYTES:
                self._propose_rows()

    def _propose_rows(self, last_seq: Seq = 0) -> None:
        rows, self._rows, self._rows_bytes = self._rows, [], 0
        sizes = self._handle.machine.index.sizes
        byte_count = sum(sizes.of_message((row[2], row[3], row[4])) for row in rows)
        # The archive need not have told how much it is; and others store meanwhile.
        wanted = self._under_way_bytes + byte_count
        account_limits.check_stored(self._context, self._handle.config, wanted)
        now_ns = self._context.clock.now_ns()
        self._propose([commands.IMPORT, now_ns, rows, last_seq], byte_count)

    def _propose(self, command: Command, byte_count: int = 0) -> None:
        self._under_way += 1
        self._under_way_bytes += byte_count
        self._handle.propose(command, lambda outcome: self._applied(outcome, byte_count))

    def _applied(self, outcome: object, byte_count: int) -> None:
        self._under_way -= 1
        self._under_way_bytes -= byte_count
        if self._is_over:
            return
        self._heard_ms = self._context.clock.monotonic_ms()
        if isinstance(outcome, JsError):
            text = outcome.description.removeprefix("restore failed: ")
            self._fail(text)
        else:
            self._pump()

    # --- the end --------------------------------------------------------------------------------

    def _finish(self) -> Iterator[bool]:
        """Steps of the end; each may propose something. True: wait for what is under way."""
        for record in self._reader.finish():
            self._take(record)
            yield False
        self._propose_rows(self._last_seq)
        yield False
        now_ns = self._context.clock.now_ns()
        for at in range(0, len(self._removals), 2 * limits.RESTORE_RANGES):
            ranges = self._removals[at : at + 2 * limits.RESTORE_RANGES]
            self._propose([commands.REMOVE, now_ns, _merged(ranges)])
            yield False
        configs = restored_consumers.restored(
            self._context, self._handle.config, self._consumers, is_tar=self._reader.is_tar
        )
        for consumer, config in zip(self._consumers, configs, strict=True):
            self._propose(self._consumer_command(consumer, config))
            yield False
        while self._under_way:
            yield True
        self._complete()

    def _consumer_command(self, consumer: ArchivedConsumer, config: ConsumerConfig) -> Command:
        state = [
            *consumer.delivered,
            *consumer.floor,
            [list(row) for row in consumer.pending],
            [list(row) for row in consumer.redelivered],
        ]
        now_ns = self._context.clock.now_ns()
        return [commands.IMPORT_CONSUMER, now_ns, consumer.name, config, now_ns, state]

    def _complete(self) -> None:
        """Bring the stream into being: its archive is applied."""
        self._is_over = True
        self._stop()

        def done(outcome: object) -> None:
            self._restores.forget(self._handle.uid)
            if isinstance(outcome, JsError):
                self._refuse(outcome)
                self._restores.watch()
            else:
                self._answer()

        self._restores.close(self._handle.uid, True, done)

    def _answer(self) -> None:
        context, handle = self._context, self._handle
        info = infos.stream_info(context, handle)
        info.pop("cluster", None)
        self._send({"type": _TYPE + "stream_create_response"} | info)
        context.advisories.stream_action("CREATED", "create", handle.name)
        context.advisories.restore_completed(
            handle.name, self._start_ns, self._received_bytes, self._client
        )

    def _fail(self, text: str, error: JsError | None = None) -> None:
        """End the upload, and have the stream deleted before the client hears why: `error`, or
        `text` as that of a failed restore."""
        self._is_over = True
        self._stop()
        if not self._reply and self._chunks:
            self._reply, _ = self._chunks.popleft()

        def done(_: object) -> None:
            self._restores.forget(self._handle.uid)
            self._refuse(error or errors.STREAM_RESTORE(err=text))
            self._restores.watch()

        self._restores.close(self._handle.uid, False, done)

    def _refuse(self, error: JsError) -> None:
        self._send({"type": _TYPE + "stream_create_response", "error": error.as_json()})

    def _send(self, document: Document) -> None:
        if self._reply:
            self._context.wires.publish(self._reply, b"", b"", to_json(document))

    def _stop(self) -> None:
        self._context.wires.unlisten(self._listening)
        self._rows, self._records, self._steps = [], None, None

    def _check_idle(self) -> None:
        """End an upload of which nothing is heard any more."""
        if self._is_over:
            return
        now_ms = self._context.clock.monotonic_ms()
        left_ms = self._heard_ms + limits.RESTORE_IDLE_MS - now_ms
        if not self._handle.is_local or self._context.node.is_stopping:
            self._fail("the stream's leader changed")
        elif left_ms <= 0 and not self._under_way:
            self._fail("no chunk came for too long")
        else:
            self._later(max(left_ms, 100) / 1000, self._check_idle)


@lru_cache(limits.RESTORE_SUBJECTS_KEPT)
def _is_of_message(subject: bytes) -> bool:
    """True of a subject that a message may have. Most messages have one of few."""
    return is_valid(subject) and is_literal(subject)


def _is_expired(headers: bytes, ts: int, now_ns: int, oldest_ts: int) -> bool:
    """True of a message with a time to live that was over while it was in the archive, or whose
    stream keeps none that is as old as `oldest_ts`."""
    value = message_headers.get(headers, TTL)
    ttl_ns = message_headers.parse_ttl(value.strip()) if value else None
    if ttl_ns == message_headers.NEVER:
        return False
    return bool(ttl_ns and ts + ttl_ns <= now_ns) or ts <= oldest_ts


def _merged(ranges: list[Seq]) -> list[Seq]:
    """Return inclusive ranges, ascending, none of which touch."""
    merged: list[Seq] = []
    for first, last in sorted(zip(ranges[::2], ranges[1::2], strict=True)):
        if merged and first <= merged[-1] + 1:
            merged[-1] = max(merged[-1], last)
        else:
            merged += (first, last)
    return merged
