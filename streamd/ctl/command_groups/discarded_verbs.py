"""`streamctl discarded`: log entries that a node set aside because its leader did not have them."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import click

from streamd.ctl import discarded_replay
from streamd.ctl.display import say, show_data
from streamd.ctl.settings import Settings
from streamd.ctl.verbs import VerbGroup, verb
from streamd.offline.discarded_files import bytes_field

SHOWN_BYTES = 60  # of a payload


@click.group("discarded", cls=VerbGroup)
def command_discarded() -> None:
    """Look at log entries that a node set aside, and publish their messages again."""


@verb(command_discarded, "list", example="streamctl discarded list data/cluster/node1/store")
@click.argument("directory", metavar="STORE_DIR", type=click.Path(path_type=Path))
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
@click.option("-n", "--limit", type=int, default=0, help="At most this many messages.")
def show(_settings: Settings, file: str, limit: int) -> None:
    """Show the messages of one file."""
    facts, records = discarded_replay.open_tail(file)
    say(f"# {json.dumps(facts._asdict())}")
    for number, record in enumerate(records):
        if limit and number >= limit:
            break
        payload = bytes_field(record, "payload")
        shown = payload[:SHOWN_BYTES].decode("utf-8", "replace")
        more = f" ({len(payload)} bytes)" if len(payload) > SHOWN_BYTES else ""
        subject = bytes_field(record, "subject").decode("utf-8", "replace")
        say(f"{record.get('seq', '-')} {record['time']} {subject} {shown!r}{more}")


@verb(
    command_discarded,
    "replay",
    example="streamctl discarded replay trash/2-tail-4-5.jsonl --dry-run",
)
@click.argument("file")
@click.option("--dry-run", is_flag=True, help="Say what would be published, and change nothing.")
def replay(settings: Settings, file: str, dry_run: bool) -> None:
    """Publish the messages of one file again, each once."""
    if dry_run:
        stream, count = discarded_replay.count(file)
        say(f"{count} messages would be published to stream {stream}")
        return
    stream, published, there = discarded_replay.replay(file, _url(settings))
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
