"""Commands of `streamctl`, one module a group, and the table that names them all.

`COMMANDS` says of each command its module here and its line in the help; the module has it as
`command_NAME`. A module is imported when its command is run.
"""

from __future__ import annotations

from typing import Final

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "stream": ("stream_verbs", "streams: list, info, add, edit, delete, purge, read, seal"),
    "consumer": ("consumer_verbs", "consumers: list, info, add, edit, next, pause, reset"),
    "lag": ("lag_verb", "how far consumers are behind, in messages and time"),
    "kv": ("kv_verbs", "buckets of keys and values"),
    "object": ("object_verbs", "buckets of files"),
    "pub": ("publish_verb", "publish messages"),
    "sub": ("follow_verbs", "show messages as they are published"),
    "tail": ("follow_verbs", "show a stream's messages, and follow it"),
    "request": ("request_verbs", "ask a service"),
    "reply": ("request_verbs", "answer requests"),
    "server": ("server_verbs", "servers: list, info, report, step-down, drain"),
    "scrub": ("scrub_verb", "verify every file of running servers now"),
    "backup": ("backup_verbs", "streams to a directory or tar, and back: create, verify, restore"),
    "top": ("top_verb", "servers, streams and consumers live, with their rates"),
    "bench": ("bench_verb", "rates and latencies of one server, or of two side by side"),
    "doctor": ("doctor_verb", "disk, limits, clocks, configuration: each with what to do"),
    "cluster": ("cluster_verbs", "a cluster on this machine: up, status, logs, restart, down"),
    "health": ("health_verb", "health of one server, as an exit status"),
    "context": ("context_verbs", "named servers and credentials: save, select, show"),
    "inspect": ("inspect_verb", "log, blocks, consumers of a directory, without a server"),
    "audit": ("audit_verb", "compare replicas, of directories or servers"),
    "trash": ("trash_verbs", "what servers set aside: list, restore, purge"),
    "recover": ("recover_verb", "what is left where copies are lost; dry run first"),
    "discarded": ("discarded_verbs", "log entries that were set aside: list, show, replay"),
    "completion": ("completion_verb", "completion for bash, zsh and fish"),
}
TOP_LEVEL: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("Streams and consumers", ("stream", "consumer", "lag", "kv", "object", "backup")),
    ("Messages", ("pub", "sub", "tail", "request", "reply")),
    ("Servers", ("server", "top", "scrub", "doctor", "bench", "cluster", "health")),
    ("Data directories", ("inspect", "audit", "trash", "recover", "discarded")),
    ("This program", ("context", "completion")),
)
