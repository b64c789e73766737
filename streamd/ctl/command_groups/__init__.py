"""Commands of `streamctl`, one module a group, and the table that names them all.

`COMMANDS` says of each command its module here and its line in the help; the module has it as
`command_NAME`. A module is imported when its command is run.
"""

from __future__ import annotations

from typing import Final

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "stream": ("stream_verbs", "streams: list, info, add, edit, delete, purge, read, seal"),
    "cluster": ("cluster_verbs", "a cluster on this machine: up, status, logs, restart, down"),
    "health": ("health_verb", "health of one server, as an exit status"),
    "context": ("context_verbs", "named servers and credentials: save, select, show"),
    "discarded": ("discarded_verbs", "log entries that were set aside: list, show, replay"),
    "completion": ("completion_verb", "completion for bash, zsh and fish"),
}
TOP_LEVEL: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("Streams and consumers", ("stream",)),
    ("Servers", ("cluster", "health")),
    ("Data directories", ("discarded",)),
    ("This program", ("context", "completion")),
)
