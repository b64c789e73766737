"""Facts of a stream as a server tells them: bounds, identity, and the ways of reading it allows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from spark_jobs.client.wire import ApiError, Wire, WireError
from streamd.offline.server_text import UNSET, parse_ns

NO_MESSAGE_FOUND: Final = 10037
STREAM_NOT_FOUND: Final = 10059


class StreamFacts(NamedTuple):
    """A stream at one moment. It is empty if `last_seq` < `first_seq`, or `messages` is 0."""

    name: str
    created: str  # tells a stream from a later one of the same name
    first_seq: int
    last_seq: int
    messages: int
    size: int  # bytes
    leader: str  # name of the leading server, "" outside a cluster
    retention: str  # limits, interest or workqueue
    allows_direct: bool
    is_compacting: bool  # single messages may leave at any time, so a moving head is no loss
    first_ns: int  # when its first message was stored; 0: it is empty
    until_ns: int  # no message of it is younger; 0: it is empty

    @property
    def average_size(self) -> int:
        """Bytes per message, at least 1."""
        return max(1, self.size // self.messages) if self.messages else 1


class StreamChanged(WireError):
    """The stream was deleted, or is another one, since the read was planned."""


class DataLost(WireError):
    """Messages that the read was to return are gone."""


def has_begun_anew(*, first_seq: int, first_ns: int, last_seq: int, until_ns: int) -> bool:
    """True if a stream that holds `first_seq`, stored at `first_ns`, as its first message is not
    the one that had got to `last_seq` with messages of up to `until_ns`.

    A stream in memory forgets its messages when its server ends, and begins at seq 1 again under
    its old creation time: then its first message is younger than all that there were. Nothing is
    told (False) while it is empty, or if `until_ns` is 0, not known.
    """
    return 0 < first_seq <= last_seq and 0 < until_ns < first_ns


def stream_facts(wire: Wire, stream: str) -> StreamFacts:
    """Ask for STREAM.INFO. Raises ApiError, also when there is no such stream."""
    info = wire.api(f"STREAM.INFO.{stream}")
    config: dict[str, Any] = info["config"]
    state: dict[str, Any] = info["state"]
    first_ns, last_ns = (parse_ns(str(state.get(key, UNSET))) for key in ("first_ts", "last_ts"))
    has_messages = int(state["messages"]) > 0
    return StreamFacts(
        name=stream,
        created=str(info["created"]),
        first_seq=int(state["first_seq"]),
        last_seq=int(state["last_seq"]),
        messages=int(state["messages"]),
        size=int(state["bytes"]),
        leader=str((info.get("cluster") or {}).get("leader", "")),
        retention=str(config.get("retention", "limits")),
        allows_direct=bool(config.get("allow_direct")),
        is_compacting=(
            config.get("retention", "limits") != "limits"
            or int(config.get("max_msgs_per_subject", -1)) > 0
            or bool(config.get("allow_msg_ttl"))
            or bool(config.get("allow_rollup_hdrs"))
        ),
        first_ns=first_ns if has_messages else 0,
        until_ns=max(first_ns, last_ns) if has_messages else 0,
    )


def same_stream(wire: Wire, stream: str, created: str) -> StreamFacts:
    """Return the facts, having checked that it is still the stream created at `created`.

    Raises StreamChanged, ApiError.
    """
    try:
        facts = stream_facts(wire, stream)
    except ApiError as err:
        if err.err_code != STREAM_NOT_FOUND:
            raise
        raise StreamChanged(
            f"stream {stream!r} of {created} was deleted while it was being read"
        ) from None
    if facts.created != created:
        raise StreamChanged(
            f"stream {stream!r} was deleted and created again: the read was planned for the "
            f"stream of {created}, the present one is of {facts.created}"
        )
    return facts


def seq_at_time(wire: Wire, stream: str, time_ns: int) -> int:
    """Return the seq of the first message not before `time_ns`; 0 if there is none yet."""
    body = {"start_time": rfc3339(time_ns)}
    try:
        answer = wire.api(f"STREAM.MSG.GET.{stream}", body)
    except ApiError as err:
        if err.err_code == NO_MESSAGE_FOUND:
            return 0
        raise
    return int(answer["message"]["seq"])


def next_seq(wire: Wire, stream: str, subjects: Sequence[str], position: int) -> int:
    """Ask the leader for the next seq from `position` on with one of `subjects` (none: any).

    Returns 0 if there is none.
    """
    found = []
    for subject in subjects or (">",):
        try:
            answer = wire.api(
                f"STREAM.MSG.GET.{stream}", {"seq": position, "next_by_subj": subject}
            )
        except ApiError as err:
            if err.err_code != NO_MESSAGE_FOUND:
                raise
        else:
            found.append(int(answer["message"]["seq"]))
    return min(found, default=0)


def rfc3339(time_ns: int) -> str:
    """Return UTC time as text, exact to the nanosecond."""
    seconds, nanos = divmod(time_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanos:09}Z"
