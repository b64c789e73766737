"""`streamctl context`: named servers and credentials."""

from __future__ import annotations

import click

from streamd.ctl import context_files
from streamd.ctl.display import Column, Field, say, show_data, show_fields, show_rows, words
from streamd.ctl.failures import unusable
from streamd.ctl.name_completion import CONTEXT_NAME
from streamd.ctl.settings import FLAGS, Settings
from streamd.ctl.verbs import VerbGroup, verb

_SECRETS = ("password", "token", "user_seed", "user_jwt")


@click.group("context", cls=VerbGroup)
def command_context() -> None:
    """Name servers and credentials, and choose one; natscli's contexts are read too."""


@verb(command_context, "list", example="streamctl context list")
def list_contexts(settings: Settings) -> None:
    """List all contexts; the one in use has a star."""
    chosen = context_files.selected()
    rows = []
    for name, path in context_files.names().items():
        fields = context_files.load(name).fields
        rows.append(
            {
                "name": name,
                "selected": name == chosen,
                "url": fields.get("url", ""),
                "description": fields.get("description", ""),
                "file": str(path),
            }
        )
    columns = (
        Column("selected", "", lambda is_chosen: "*" if is_chosen else ""),
        *words("name", "url", "description", "file"),
    )
    show_rows(settings, rows, columns, none="no contexts: streamctl context save NAME --server URL")


@verb(command_context, "show", example="streamctl context show staging")
@click.argument("name", required=False, default="", type=CONTEXT_NAME)
def show(settings: Settings, name: str) -> None:
    """Show one context (default: the one in use), without its secrets."""
    name = name or context_files.selected()
    if not name:
        raise unusable("no context is in use", "streamctl context select NAME")
    found = context_files.load(name)
    shown = {
        key: "(set)" if key in _SECRETS else value for key, value in sorted(found.fields.items())
    }
    data = {"name": name, "file": str(found.path), "fields": shown}
    lines = [Field("file", str(found.path)), *(Field(key, str(shown[key])) for key in shown)]
    show_fields(settings, data, [(f"Context {name}", lines)])


@verb(
    command_context,
    "save",
    example="streamctl context save staging --server nats://10.0.0.7:4222 --creds ~/ops.creds",
)
@click.argument("name", type=CONTEXT_NAME)
@click.option("--description", default="", help="Remark for people.")
@click.option("--select", "is_selected", is_flag=True, help="Use it from now on.")
def save(settings: Settings, name: str, description: str, is_selected: bool) -> None:
    """Save the server and credentials of this command line under a name."""
    fields = {field: getattr(settings, field, "") for field in context_files.FIELDS}
    fields["tls_first"] = settings.tls_first
    fields["description"] = description
    path = context_files.save(name, fields)
    if is_selected:
        context_files.select(name)
    if not show_data(settings, {"name": name, "file": str(path), "selected": is_selected}):
        say(f"saved {path}")
        if is_selected:
            say(f"{name} is in use")


@verb(command_context, "select", example="streamctl context select staging")
@click.argument("name", type=CONTEXT_NAME)
def select(settings: Settings, name: str) -> None:
    """Use this context from now on."""
    context_files.select(name)
    if not show_data(settings, {"selected": name}):
        say(f"{name} is in use")


@verb(command_context, "delete", example="streamctl context delete staging")
@click.argument("name", type=CONTEXT_NAME)
def delete(settings: Settings, name: str) -> None:
    """Remove a context."""
    path = context_files.delete(name)
    if not show_data(settings, {"removed": str(path)}):
        say(f"removed {path}")


assert {field for field, *_ in FLAGS} - {"context", "timeout"} <= set(context_files.FIELDS)
