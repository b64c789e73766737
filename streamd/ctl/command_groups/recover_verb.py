"""`streamctl recover`: streams that lost their only copy, or their quorum, with what is left."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import click

from streamd.cli.cluster_local import server_binary
from streamd.ctl.display import note, say, show_data
from streamd.ctl.failures import CtlError
from streamd.ctl.progress_bar import spinner
from streamd.ctl.questions import confirm, yes_option
from streamd.ctl.settings import Settings
from streamd.ctl.verbs import verb


@verb(None, "recover", example="streamctl recover --config /etc/streamd/node3.conf")
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help="Configuration of the server, which must not run.",
)
@click.option("--start", is_flag=True, help="Afterwards start the server with what is left.")
@click.option("--binary", default="", help="Program of the server [default: streamd].")
@yes_option
def command_recover(settings: Settings, config: Path, start: bool, binary: str, yes: bool) -> int:
    """Show what a server would go on with if the loss of the rest were accepted: by stream, what
    is there, what is lost, and where consumers stand. Changes nothing.

    With --start the server is then started once with --accept-loss, after a question, in the place
    of this program. Files that are given up are kept in its trash."""
    program = binary or server_binary()
    with spinner("reading what is left"):
        done = subprocess.run(
            [program, "-c", str(config), "--accept-loss=dry-run"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise CtlError(
            f"the dry run failed: {done.stderr.strip() or f'status {done.returncode}'}",
            "stop the server first; a directory that it holds can't be tried",
        )
    lines = done.stdout.splitlines()
    if not show_data(settings, {"config": str(config), "report": lines}):
        for line in lines:
            say(line)
    if not start:
        note("nothing was changed; --start goes on from there")
        return 0
    confirm(f"start the server of {config}, and accept that the rest is lost", yes)
    os.execv(program, [program, "-c", str(config), "--accept-loss"])
    return None
