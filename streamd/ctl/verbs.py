"""Commands as `streamctl` has them: groups that load late, flags that every command takes.

A group of `command_groups/` is a `click.Group` with the class `VerbGroup`. Its commands come from
`verb` (plain functions) and `wire_verb` (coroutines that are handed a connection). Each has an
example, which `--help` shows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import update_wrapper
from importlib import import_module
from typing import Any, Final, TypeVar

import click

from streamd.ctl.command_groups import COMMANDS, TOP_LEVEL
from streamd.ctl.settings import Settings, flag_options, settings_of

F = TypeVar("F", bound=Callable[..., Any])

_PACKAGE: Final = "streamd.ctl.command_groups"
_MORE: Final = "Flags for servers, credentials and output: streamctl --help"


class Verb(click.Command):
    """Command that also takes the flags which every command takes; they are shown by the root."""

    def __init__(self, *args: Any, example: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        taken = {flag for each in self.params for flag in each.opts}
        self.params += [each for each in flag_options(is_root=False) if taken.isdisjoint(each.opts)]
        self.example = example

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example behind the options."""
        formatter.write_paragraph()
        formatter.write("Example:\n")
        for line in self.example.splitlines():
            formatter.write(f"  {line}\n")
        formatter.write(f"\n{_MORE}\n")


class VerbGroup(click.Group):
    """Group of commands; its help is the first line of each."""

    command_class = Verb


class LateGroup(click.Group):
    """Root of all commands: a module of `command_groups` is imported when its command is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in alphabetical order."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command and return the command."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"{_PACKAGE}.{COMMANDS[cmd_name][0]}")
        found: click.Command = getattr(module, "command_" + cmd_name.replace("-", "_"))
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write names and what they are for, without importing any of them."""
        for title, names in TOP_LEVEL:
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])


def verb(
    group: click.Group | None, name: str, *, example: str
) -> Callable[[Callable[..., int | None]], click.Command]:
    """Make a function, whose first argument is the settings, a command of `group`."""

    def decorate(work: Callable[..., int | None]) -> click.Command:
        def run(**options: Any) -> int | None:
            return work(_settings(), **options)

        return _add(group, name, example, work, run)

    return decorate


def wire_verb(
    group: click.Group | None, name: str, *, example: str, is_long: bool = False
) -> Callable[[Callable[..., Awaitable[int | None]]], click.Command]:
    """Make a coroutine, whose first argument is a connection, a command of `group`.

    `is_long`: the command goes on for as long as its user likes, and connects again if the
    connection is lost.
    """

    def decorate(work: Callable[..., Awaitable[int | None]]) -> click.Command:
        def run(**options: Any) -> int | None:
            from streamd.ctl.nats_link import run_on_link

            return run_on_link(_settings(), lambda link: work(link, **options), is_long=is_long)

        return _add(group, name, example, work, run)

    return decorate


def count_option(*flags: str, default: int, help_text: str) -> Callable[[F], F]:
    """Make a flag that is a number from 1 on, and whose default `--help` shows."""
    at_least_one = click.IntRange(min=1)
    return click.option(
        *flags, type=at_least_one, default=default, show_default=True, help=help_text
    )


def _settings() -> Settings:
    return settings_of(click.get_current_context())


def _add(
    group: click.Group | None,
    name: str,
    example: str,
    work: Callable[..., Any],
    run: Callable[..., int | None],
) -> click.Command:
    made: click.Command = click.command(name, cls=Verb, example=example)(update_wrapper(run, work))
    if group is not None:
        group.add_command(made)
    return made
