"""`streamctl discarded`: log entries that a node set aside because its leader did not have them."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from streamd.ctl import discarded_replay
from streamd.ctl.display import say, show_data
from streamd.ctl.message_display import Shown, as_document, parse_headers
from streamd.ctl.progress_bar import progress_bar
from streamd.ctl.settings import Settings
from streamd.ctl.store_keys import key_option
from streamd.ctl.verbs import VerbGroup, verb
from streamd.offline.discarded_files import bytes_field

SHOWN_BYTES = 60  # of a payload


@click.group("discarded", cls=VerbGroup)
def command_discarded() -> None:
    """Look at log entries that a node set aside, and publish their messages again."""


@verb(command_discarded, "list", example="streamctl discarded list data/cluster/node1/store")
@click.argument("directory", metavar="STORE_DIR", type=click.Path(path_type=Path))
@key_option
@click.option("--json", "is_json", is_flag=True, hidden=True, help="As --output json.")
def list_files(settings: Settings, directory: Path, is_json: bool) -> None:
    """List the files of such entries in the trash/ of a store directory."""
    tails = discarded_replay.tails_in(directory)
    rows = [tail._asdict() | {"facts": tail.facts._asdict()} for tail in tails]
    if is_json:
        print(json.dumps(rows))
        return
    if show_data(settings, rows):
        return
    for tail in tails:
        facts = tail.facts
        say(
            f"{tail.path}\n  stream {facts.stream or '(meta group)'}, {facts.proof}, entries "
            f"{facts.first_index}..{facts.last_index}, {tail.messages} messages "
            f"({tail.first_seq}..{tail.last_seq}), set aside {facts.set_aside} by {facts.node}, "
            f"led by {facts.leader or 'nobody known'}"
        )
    if not tails:
        say("nothing is set aside")


@verb(command_discarded, "show", example="streamctl discarded show trash/2-tail-4-5.jsonl -n 10")
@click.argument("file")
@click.option(
    "-n", "--limit", type=click.IntRange(min=0), default=0, help="At most this many messages."
)
@key_option
def show(settings: Settings, file: str, limit: int) -> None:
    """Show the messages of one file."""
    facts, records = discarded_replay.open_tail(file)
    chosen = islice(records, limit or None)
    if settings.output != "table":
        show_data(settings, {"facts": facts._asdict(), "messages": [_document(r) for r in chosen]})
        return
    say(f"# {json.dumps(facts._asdict())}")
    for record in chosen:
        payload = bytes_field(record, "payload")
        shown = payload[:SHOWN_BYTES].decode("utf-8", "replace")
        more = f" ({len(payload)} bytes)" if len(payload) > SHOWN_BYTES else ""
        subject = bytes_field(record, "subject").decode("utf-8", "replace")
        say(f"{record.get('seq', '-')} {record['time']} {subject} {shown!r}{more}")


def _document(record: discarded_replay.Record) -> dict[str, Any]:
    """Return a message for programs, as other commands print theirs."""
    headers = parse_headers(bytes_field(record, "headers"))
    subject = bytes_field(record, "subject").decode("utf-8", "replace")
    made = as_document(Shown(subject, bytes_field(record, "payload"), headers))
    if "seq" in record:
        made["seq"] = record["seq"]
    return made | {"time": str(record["time"])}


@verb(
    command_discarded,
    "replay",
    example="streamctl discarded replay trash/2-tail-4-5.jsonl --dry-run",
)
@click.argument("file")
@click.option("--dry-run", is_flag=True, help="Say what would be published, and change nothing.")
@key_option
def replay(settings: Settings, file: str, dry_run: bool) -> None:
    """Publish the messages of one file again, each once."""
    if dry_run:
        stream, count = discarded_replay.count(file)
        if not show_data(settings, {"stream": stream, "messages": count, "published": 0}):
            say(f"{count} messages would be published to stream {stream}")
        return
    with progress_bar("publishing") as bar:
        stream, published, there = discarded_replay.replay(file, _url(settings), bar.advance)
    done = {"stream": stream, "messages": published + there, "published": published}
    if not show_data(settings, done):
        say(
            f"{published} messages published to stream {stream}, {there} were there; the file is "
            f"{file}{discarded_replay.REPLAYED} now"
        )


def _url(settings: Settings) -> str:
    """Return the first server's URL with the login in it."""
    scheme, _, host = settings.servers[0].partition("://")
    secret = f"{quote(settings.user)}:{quote(settings.password)}"
    login = f"{secret}@" if settings.password else f"{quote(settings.token or settings.user)}@"
    return f"{scheme}://{'' if '@' in host or login == '@' else login}{host}"
