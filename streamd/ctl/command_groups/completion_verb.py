"""`streamctl completion`: scripts by which a shell completes commands, streams and consumers."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from streamd.ctl.settings import Settings
from streamd.ctl.verbs import verb

VARIABLE = "_STREAMCTL_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@verb(None, "completion", example='eval "$(streamctl completion bash)"')
@click.argument("shell", type=click.Choice(SHELLS))
def command_completion(_settings: Settings, shell: str) -> None:
    """Print a shell's script for completion; evaluate it, or save it where the shell looks."""
    found = get_completion_class(shell)
    assert found is not None, shell
    root = click.get_current_context().find_root().command
    print(found(root, {}, "streamctl", VARIABLE).source())
