"""Reference of all commands, `docs/streamctl.md`: made from the commands themselves.

python -m streamd.ctl.reference_page > docs/streamctl.md
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final

import click

from streamd.ctl.app import PROGRAM, root
from streamd.ctl.command_groups import COMMANDS, TOP_LEVEL
from streamd.ctl.verbs import Verb

_INTRODUCTION: Final = """\
# streamctl

The command line of streamd. It speaks the NATS protocol, so most of it works with a nats-server
too. This page is made from the commands themselves (`python -m streamd.ctl.reference_page`), and
a test checks that it is up to date.

`pip install` of the server brings it. Everything has `--help` with an example.

* **Which server.** `--server URL`, else `NATS_URL`, else the context in use (`streamctl
  context`), else `nats://127.0.0.1:4222`. The contexts of natscli are read too, and so are its
  variables.
* **Output.** Tables for people; `--output json` or `yaml` for programs. The JSON of every command
  has a schema: `streamd/ctl/schemas/outputs.json`. Remarks and errors go to standard error.
* **Exit status.** 0: done. 1: it failed, or what was looked at is beyond a threshold. 2: the
  command line can't be carried out as it stands, nobody agreed to something dangerous, or not all
  could be read.
* **Questions.** What destroys something asks at a terminal; `--yes` agrees in advance. Without
  either nothing is done.
* **Completion.** `eval "$(streamctl completion bash)"`, or zsh, or fish: commands, streams,
  consumers, buckets, servers.
"""


def commands() -> Iterator[tuple[str, Verb]]:
    """Yield each command that does something, with the words it is run by."""
    context = click.Context(root)
    for name in COMMANDS:
        found = root.get_command(context, name)
        if isinstance(found, click.Group):
            for word in found.list_commands(context):
                inner = found.get_command(context, word)
                assert isinstance(inner, Verb), (name, word)
                yield f"{name} {word}", inner
        else:
            assert isinstance(found, Verb), name
            yield name, found


def page() -> str:
    """Return the text of the page."""
    known = dict(commands())
    parts = [_INTRODUCTION, "## Flags of all commands\n\n" + _options(root) + "\n"]
    for title, names in TOP_LEVEL:
        parts.append(f"## {title}\n")
        for name in names:
            mine = [path for path in known if path.split()[0] == name]
            parts += [_section(path, known[path]) for path in mine]
    return "\n".join(parts)


def _section(path: str, command: Verb) -> str:
    arguments = [
        each.make_metavar(click.Context(command))
        for each in command.params
        if isinstance(each, click.Argument)
    ]
    usage = " ".join([PROGRAM, path, *arguments])
    text = " ".join(inspect.cleandoc(command.help or "").split())
    options = _options(command)
    example = "\n".join(f"    {line}" for line in command.example.splitlines())
    return f"### `{usage}`\n\n{text}\n\n{example}\n" + (f"\n{options}\n" if options else "")


def _options(command: click.Command) -> str:
    lines = []
    for each in command.params:
        if isinstance(each, click.Option) and not each.hidden:
            flags = ", ".join(f"`{flag}`" for flag in (*each.opts, *each.secondary_opts))
            text = " ".join((each.help or "").split())
            if isinstance(each.type, click.Choice):
                text = f"{text} ({', '.join(map(str, each.type.choices))})".lstrip()
            if each.envvar:
                text = f"{text}; variable `{each.envvar}`"
            lines.append(f"* {flags}: {text}" if text else f"* {flags}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
