"""Surface of nats-server 2.15, why some of it is not here, and requests of the `nats` command line.

A request, key, header, status or error that the code of streamd has not is in a table of reasons; a
test compares.
"""

from __future__ import annotations

from typing import Final, NamedTuple


def _words(text: str) -> list[str]:
    return text.split()


REQUESTS: Final = _words("""
INFO STREAM.CREATE STREAM.UPDATE STREAM.NAMES STREAM.LIST STREAM.INFO STREAM.DELETE STREAM.PURGE
STREAM.SNAPSHOT STREAM.RESTORE STREAM.MSG.GET STREAM.MSG.DELETE STREAM.PEER.REMOVE
STREAM.PEER.EVACUATE STREAM.CANCEL_MOVE STREAM.LEADER.STEPDOWN CONSUMER.CREATE
CONSUMER.DURABLE.CREATE CONSUMER.NAMES CONSUMER.LIST CONSUMER.INFO CONSUMER.DELETE CONSUMER.PAUSE
CONSUMER.UNPIN CONSUMER.RESET CONSUMER.MSG.NEXT CONSUMER.LEADER.STEPDOWN CONSUMER.PEER.REMOVE
CONSUMER.PEER.EVACUATE DIRECT.GET META.LEADER.STEPDOWN META.RESCUE SERVER.REMOVE SERVER.EVACUATE
ACCOUNT.PURGE ACCOUNT.STREAM.MOVE ACCOUNT.STREAM.CANCEL_MOVE
""")
"""Requests of `$JS.API`, without the names of streams and consumers behind them."""

_OF_SERVERS: Final = _words(
    "IDZ STATSZ VARZ SUBSZ CONNZ ROUTEZ GATEWAYZ LEAFZ ACCOUNTZ JSZ HEALTHZ PROFILEZ EXPVARZ"
    " IPQUEUESZ RAFTZ RELOAD KICK LDM"
)
_OF_ACCOUNTS: Final = _words("SUBSZ CONNZ LEAFZ JSZ INFO STATZ CONNS CLAIMS.LOOKUP CLAIMS.UPDATE")
SYSTEM_SUBJECTS: Final = [
    "$SYS.REQ.SERVER.PING",
    *(f"$SYS.REQ.SERVER.*.{name}" for name in _OF_SERVERS),
    *(f"$SYS.REQ.ACCOUNT.*.{name}" for name in _OF_ACCOUNTS),
    "$SYS.REQ.ACCOUNT.NSUBS",
    *(f"$SYS.REQ.CLAIMS.{name}" for name in ("UPDATE", "LIST", "PACK", "DELETE")),
    "$SYS.REQ.USER.INFO",
    "$SYS.REQ.USER.*.INFO",
    "$SYS.DEBUG.SUBSCRIBERS",
]
"""Requests of the system account; `*` is an id, a name, or `PING` for all."""

HEADERS: Final = _words("""
Nats-Msg-Id Nats-Expected-Stream Nats-Expected-Last-Sequence Nats-Expected-Last-Subject-Sequence
Nats-Expected-Last-Subject-Sequence-Subject Nats-Expected-Last-Msg-Id Nats-Rollup Nats-TTL
Nats-Marker-Reason Nats-Incr Nats-Counter-Sources Nats-Batch-Id Nats-Batch-Sequence
Nats-Batch-Commit Nats-Schedule Nats-Schedule-Target Nats-Schedule-Source Nats-Schedule-TTL
Nats-Schedule-Rollup Nats-Schedule-Time-Zone Nats-Scheduler Nats-Schedule-Next
Nats-Required-Api-Level Nats-Stream-Source Nats-Stream-Identity Nats-Stream Nats-Subject
Nats-Sequence Nats-Time-Stamp Nats-Last-Sequence Nats-Num-Pending Nats-UpTo-Sequence Nats-Msg-Size
Nats-Last-Consumer Nats-Last-Stream Nats-Consumer-Stalled Nats-Pending-Messages Nats-Pending-Bytes
Nats-Pin-Id Nats-Response-Type Nats-Request-Info Nats-Server-Xkey Nats-Trace-Dest Nats-Trace-Hop
Nats-Trace-Only Nats-Trace-Origin-Account Nats-No-Masking KV-Operation Traceparent
""")
"""Headers that the server reads or writes."""

STATUSES: Final = [
    "100 Idle Heartbeat",
    "100 FlowControl Request",
    "204",
    "204 EOB",
    "400 Bad Request*",
    "404 Message Not Found",
    "404 No Messages",
    "404 No Results",
    "408 Bad Request",
    "408 Empty Request",
    "408 Interest Expired",
    "408 Malformed Request",
    "408 No Flow Response",
    "408 No Interest",
    "408 Request Timeout",
    "408 Requests Pending",
    "409 Batch Completed",
    "409 Consumer Deleted",
    "409 Consumer is push based",
    "409 Exceeded MaxRequestBatch of *",
    "409 Exceeded MaxRequestExpires of *",
    "409 Exceeded MaxRequestMaxBytes of *",
    "409 Exceeded MaxWaiting",
    "409 Leadership Change",
    "409 Message Size Exceeds MaxBytes",
    "409 Server Shutdown",
    "412 Required Api Level",
    "413 Too Many Results",
    "423 Nats-Wrong-Pin-Id",
    "429 Too Many Requests",
    "503",
]
"""Status lines of messages; `*` matches anything."""

UNSERVED: Final[dict[str, str]] = {
    "Nats-Response-Type": "between the servers of a cluster of nats-server only",
}
"""Requests and headers of nats-server that are not here, and why."""

OWN_FIELDS: Final[dict[str, str]] = {
    "STREAM.SNAPSHOT start_seq": "messages before it are left out ([backup](backup.md))",
}
"""Fields of requests that nats-server does not know."""

NEVER_SENT: Final[dict[str, str]] = {
    "408 Interest Expired": "a request is dropped when nobody listens for its messages any more",
    "429 Too Many Requests": "a publisher that is too fast is read more slowly; where that is not"
    " enough the body says so alone (10167)",
}
"""Statuses of nats-server that are never sent, and why."""

_GATEWAYS: Final = "gateways are not served: clusters are joined by leaf links"
_MQTT: Final = "MQTT is not served"
_PROXIES: Final = "the proxy protocol and trusted proxies are not served"
_OCSP: Final = "stapled answers (OCSP) are not served"
_LINKS: Final = "links between servers are one per pair, and tuned by the server itself"
_TUNING: Final = "tunes a way of storing or sending that is another one here"
UNSERVED_KEYS: Final[dict[str, str]] = {
    "connect_error_reports": "the log says once what fails, and once that it is over",
    "reconnect_error_reports": "the log says once what fails, and once that it is over",
    "default_js_domain": "a domain is asked for by its name",
    "disable_sublist_cache": _TUNING,
    "no_sublist_cache": _TUNING,
    "feature_flags": "flags of nats-server's own program",
    "gateway": _GATEWAYS,
    "mqtt": _MQTT,
    "no_fast_producer_stall": _TUNING,
    "ocsp_cache": _OCSP,
    "prof_port": "profiles of Go programs",
    "prof_block_rate": "profiles of Go programs",
    "syslog": "the log goes to stderr or a file; systemd passes it on",
    "remote_syslog": "the log goes to stderr or a file; systemd passes it on",
    "write_timeout": "a client that reads nothing is cut off after `write_deadline`",
    "proxies": _PROXIES,
    "proxy_protocol": _PROXIES,
    "authorization.proxy_required": _PROXIES,
    "authorization.users.proxy_required": _PROXIES,
    "tls.ca_certs_match": "certificate stores of Windows",
    "tls.cert_match": "certificate stores of Windows",
    "tls.cert_match_by": "certificate stores of Windows",
    "tls.cert_match_skip_invalid": "certificate stores of Windows",
    "tls.ocsp_peer": _OCSP,
    "jetstream.extension_hint": "a hint for nats-server's own service",
    "jetstream.info_queue_limit": _TUNING,
    "jetstream.max_buffered_msgs": _TUNING,
    "jetstream.max_buffered_size": _TUNING,
    "jetstream.max_concurrent_io": _TUNING,
    "jetstream.max_outstanding_catchup": _TUNING,
    "jetstream.meta_compact": _TUNING,
    "jetstream.meta_compact_size": _TUNING,
    "jetstream.meta_compact_sync": _TUNING,
    "jetstream.request_queue_limit": _TUNING,
    "jetstream.tpm": "keys in a TPM are not served: give `key`, or a file with it",
    "jetstream.limits.default_max_consumers": "set `max_consumers` of streams and accounts",
    "cluster.accounts": _LINKS,
    "cluster.compression": _LINKS,
    "cluster.connect_backoff": _LINKS,
    "cluster.ping_interval": _LINKS,
    "cluster.ping_max": _LINKS,
    "cluster.pool_size": _LINKS,
    "cluster.write_deadline": _LINKS,
    "cluster.write_timeout": _LINKS,
    "cluster.permissions": "subjects between the servers of one cluster are not restricted",
    "cluster.authorization.default_permissions": "servers of a cluster have one login",
    "cluster.authorization.permissions": "servers of a cluster have one login",
    "cluster.authorization.proxy_required": _PROXIES,
    "leafnodes.dial_timeout": _TUNING,
    "leafnodes.write_timeout": "a link that reads nothing is cut off after `write_deadline`",
    "leafnodes.authorization.proxy_required": _PROXIES,
    "leafnodes.authorization.users.proxy_required": _PROXIES,
    "leafnodes.remotes.jetstream_cluster_migrate": "streams move when servers fail, not links",
    "leafnodes.remotes.js_cluster_migrate": "streams move when servers fail, not links",
    "leafnodes.remotes.proxy": _PROXIES,
}
"""Keys of nats-server's configuration that are ignored or refused, and why."""

_NO_TEMPLATES: Final = "stream templates went with nats-server 2.10; their requests have no answer"
_BY_JSON: Final = "a word that is none is refused before, as JSON (10025), as by nats-server"
_OF_OLD: Final = "nats-server's of older versions"
NEVER_RETURNED: Final[dict[str, str]] = {
    "CLUSTER_INCOMPLETE": "lists name what is missing instead, as nats-server's do",
    "CLUSTER_NOT_ACTIVE": "requests of clusters are answered by 10010 on a single server",
    "CLUSTER_NOT_ASSIGNED": "any server passes requests on to the one that leads",
    "CLUSTER_TAGS": "tags place streams wherever streams are placed",
    "CLUSTER_UN_SUPPORT_FEATURE": "clusters have every feature of a single server",
    "CONSUMER_DURABLE_NAME_NOT_IN_SUBJECT": "the subject is no request then, and has no answer",
    "CONSUMER_EPHEMERAL_WITH_DURABLE_IN_SUBJECT": _OF_OLD,
    "CONSUMER_BAD_DURABLE_NAME": "a name that is none is refused by 10052",
    "CONSUMER_CONFIG_REQUIRED": "a request without a configuration has an empty one",
    "CONSUMER_EXISTING_ACTIVE": "10013 stands for it, as with nats-server",
    "CONSUMER_FILTER_NOT_SUBSET": _OF_OLD,
    "CONSUMER_MAX_REQUEST_BATCH_NEGATIVE": "what is below 0 is taken for none",
    "CONSUMER_MAX_WAITING_NEGATIVE": "what is below 0 is taken for the default",
    "CONSUMER_OFFLINE": "streams are never of a newer level than their servers",
    "CONSUMER_OFFLINE_REASON": "streams are never of a newer level than their servers",
    "CONSUMER_ON_MAPPED": _OF_OLD,
    "CONSUMER_PULL_NOT_DURABLE": _OF_OLD,
    "CONSUMER_REPLACEMENT_WITH_DIFFERENT_NAME": _OF_OLD,
    "CONSUMER_STORE_FAILED": "a disk that fails stops the stream, which then has no leader",
    "CONSUMER_ACK_POLICY_INVALID": _BY_JSON,
    "CONSUMER_REPLAY_POLICY_INVALID": _BY_JSON,
    "MIRROR_CONSUMER_SETUP_FAILED": "told in the stream's info, as with nats-server",
    "MIRROR_WITH_START_SEQ_AND_TIME": "both may be given, as with nats-server: the sequence counts",
    "MIRROR_WITH_SUBJECT_FILTERS": _OF_OLD,
    "NOT_ENABLED": "10039 stands for it, as with nats-server",
    "RESTORE_SUBSCRIBE_FAILED": "a subject of the server's own is always free",
    "SOURCE_CONSUMER_SETUP_FAILED": "told in the stream's info, as with nats-server",
    "STREAM_ASSIGNMENT": "a stream that can be placed is",
    "STREAM_DELETE": "a deletion that the log has is done",
    "STREAM_DUPLICATE_MESSAGE_CONFLICT": "a repeated id waits for the first one, and is told its"
    " sequence",
    "STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_NOT_READY": "a message waits for those before it",
    "STREAM_INFO_MAX_SUBJECTS": "subjects come in pages",
    "STREAM_INVALID": "a configuration is refused by 10052",
    "STREAM_LIMITS": "limits have errors of their own",
    "STREAM_MIN_LAST_SEQ": "a status of direct gets says it (docs/extensions.md)",
    "STREAM_OFFLINE": "streams are never of a newer level than their servers",
    "STREAM_RECONFIGURE_IN_PROGRESS": "10124 stands for it",
    "STREAM_REPLICAS_NOT_UPDATABLE": "replicas can be changed",
    "STREAM_SEQUENCE_NOT_MATCH": _OF_OLD,
    "STREAM_TEMPLATE_CREATE": _NO_TEMPLATES,
    "STREAM_TEMPLATE_DELETE": _NO_TEMPLATES,
    "STREAM_TEMPLATE_NOT_FOUND": _NO_TEMPLATES,
    "TEMPLATE_NAME_NOT_MATCH_SUBJECT": _NO_TEMPLATES,
    "TEMP_STORAGE_FAILED": "a restore goes to the stream's log, not to a file of its own",
}
"""Errors of nats-server's table that are never returned, by streamd's constants, and why."""


class Command(NamedTuple):
    """A command of `nats`, the requests that it sends, and whether it asks a server at all."""

    name: str
    needs: tuple[str, ...]  # rows: `api:INFO`, `sys:$SYS.REQ.SERVER.*.VARZ`; `core`; none: local


def _commands(text: str) -> list[Command]:
    found = []
    for line in text.strip().splitlines():
        names, _, needs = line.partition(":")
        rows = tuple(_row(word) for word in needs.split())
        found += [Command(name, rows) for name in names.split(", ")]
    return found


def _row(word: str) -> str:
    if word in ("core", "event"):
        return word
    if word in _OF_SERVERS:
        return f"sys:$SYS.REQ.SERVER.*.{word}"
    return f"sys:{word}" if word.startswith("$SYS") else f"api:{word}"


COMMANDS: Final = _commands("""
pub: core
sub: core CONSUMER.CREATE STREAM.INFO DIRECT.GET
request: core
reply: core
rtt: core
latency: core
traffic: core
trace: core
top: VARZ CONNZ
events: event
account info: INFO $SYS.REQ.USER.INFO
account report connections: CONNZ
account report statistics: $SYS.REQ.ACCOUNT.*.STATZ
account backup: STREAM.LIST STREAM.SNAPSHOT
account restore: STREAM.NAMES STREAM.RESTORE
account tls: core
stream add, stream copy: STREAM.CREATE STREAM.INFO
stream edit, stream seal: STREAM.INFO STREAM.UPDATE
stream ls, stream find, stream report, stream graph: STREAM.NAMES STREAM.LIST STREAM.INFO
stream info, stream state, stream subjects: STREAM.INFO
stream rm: STREAM.DELETE
stream purge: STREAM.PURGE
stream rmm: STREAM.MSG.DELETE
stream get: STREAM.MSG.GET DIRECT.GET
stream view: CONSUMER.CREATE CONSUMER.MSG.NEXT CONSUMER.DELETE
stream gaps: CONSUMER.CREATE STREAM.INFO
stream backup: STREAM.SNAPSHOT
stream restore: STREAM.RESTORE
stream cluster step-down, stream cluster balance: STREAM.LEADER.STEPDOWN STREAM.INFO
stream cluster peer-remove: STREAM.PEER.REMOVE
consumer add, consumer copy, consumer edit: CONSUMER.INFO CONSUMER.CREATE
consumer ls, consumer find, consumer report: CONSUMER.NAMES CONSUMER.LIST
consumer info, consumer state, consumer graph: CONSUMER.INFO
consumer rm: CONSUMER.DELETE
consumer next: CONSUMER.INFO CONSUMER.MSG.NEXT
consumer sub: CONSUMER.INFO CONSUMER.MSG.NEXT core
consumer pause, consumer resume: CONSUMER.PAUSE
consumer unpin: CONSUMER.UNPIN
consumer cluster step-down: CONSUMER.LEADER.STEPDOWN CONSUMER.INFO
kv add: STREAM.CREATE
kv put, kv create, kv update, kv del, kv purge: STREAM.INFO core
kv get: STREAM.INFO DIRECT.GET STREAM.MSG.GET
kv history, kv watch, kv compact, kv revert: STREAM.INFO CONSUMER.CREATE STREAM.PURGE
kv ls: STREAM.LIST CONSUMER.CREATE
kv info: STREAM.INFO
object add, object seal: STREAM.CREATE STREAM.UPDATE
object put, object rm: STREAM.INFO STREAM.PURGE core
object get, object info, object watch: STREAM.INFO DIRECT.GET CONSUMER.CREATE
object ls: STREAM.LIST CONSUMER.CREATE
counter get, counter view, counter list: STREAM.INFO DIRECT.GET
counter increment: STREAM.INFO core
governor add, governor edit, governor view, governor rm: STREAM.CREATE STREAM.UPDATE STREAM.DELETE
governor evict, governor reset, governor run: STREAM.PURGE STREAM.MSG.DELETE core
service ls, service info, service stats, service ping, service serve: core
bench pub, bench sub, bench service: core
bench js pub: STREAM.CREATE STREAM.PURGE core
bench js ordered, bench js consume, bench js fetch: CONSUMER.CREATE CONSUMER.MSG.NEXT
bench js get: DIRECT.GET
bench kv put, bench kv get: STREAM.CREATE DIRECT.GET core
server info: VARZ
server list, server ping: STATSZ
server report accounts: ACCOUNTZ CONNZ
server report connections: CONNZ
server report cpu, server report mem: STATSZ
server report gateways: GATEWAYZ
server report health: HEALTHZ
server report jetstream: JSZ STATSZ
server report leafnodes: LEAFZ
server report routes: ROUTEZ
server request accounts: ACCOUNTZ
server request connections: CONNZ
server request gateways: GATEWAYZ
server request jetstream: JSZ
server request jetstream-health: HEALTHZ
server request kick: KICK
server request leafnodes: LEAFZ
server request profile: PROFILEZ
server request routes: ROUTEZ
server request subscriptions: SUBSZ
server request variables: VARZ
server check connection: core
server check credential:
server check stream: STREAM.INFO
server check consumer: CONSUMER.INFO
server check message: STREAM.MSG.GET
server check kv: STREAM.INFO DIRECT.GET
server check jetstream: INFO STREAM.LIST
server check meta: JSZ
server check server: VARZ
server check request: core
server stream-check, server consumer-check: JSZ
server account info: $SYS.REQ.ACCOUNT.*.INFO
server account purge: ACCOUNT.PURGE JSZ
server cluster step-down: META.LEADER.STEPDOWN JSZ
server cluster peer-remove: SERVER.REMOVE JSZ
server cluster balance: CONNZ VARZ KICK
server cluster evacuate: SERVER.EVACUATE JSZ
server cluster rescue: META.RESCUE JSZ
server config reload: RELOAD
server watch accounts, server watch servers, server watch jetstream: event
server mapping, server passwd, server run:
audit gather: VARZ CONNZ ROUTEZ GATEWAYZ LEAFZ SUBSZ JSZ ACCOUNTZ HEALTHZ STREAM.INFO
audit analyze, audit checks:
auth account push: $SYS.REQ.CLAIMS.UPDATE
auth account query: $SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP
auth operator, auth user, auth nkey:
context, errors, cheat, schema, plugins:
""")
"""Commands of `nats`, the command line of the NATS authors, with the requests that each sends.

Taken from its source for streams, consumers, buckets, accounts, counters and the cluster,
and from its manual for the rest: it is a program in Go, which no package registry at hand has.
"""
