"""Settings of a run of `streamctl`: which server, as whom, and how results are shown."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final

import click

from streamd.ctl import context_files
from streamd.ctl.failures import unusable
from streamd.ctl.quantities import parse_span

DEFAULT_URL: Final = "nats://127.0.0.1:4222"
FORMATS: Final = ("table", "json", "yaml")
_META: Final = "streamd.ctl."
# Flags that every command takes, before or behind its name: (field, flags, variable, help).
FLAGS: Final = (
    ("url", ("-s", "--server"), "NATS_URL", "URLs of servers, with commas between them"),
    ("context", ("--context",), "NATS_CONTEXT", "context to use: streamctl context list"),
    ("user", ("--user",), "NATS_USER", "user name, or a token where no password is given"),
    ("password", ("--password",), "NATS_PASSWORD", "password of the user"),
    ("creds", ("--creds",), "NATS_CREDS", "file of credentials (token and seed of a user)"),
    ("nkey", ("--nkey",), "NATS_NKEY", "file with the seed of a user's nkey"),
    ("cert", ("--tlscert",), "NATS_CERT", "own certificate, for servers that verify it"),
    ("key", ("--tlskey",), "NATS_KEY", "private key of --tlscert"),
    ("ca", ("--tlsca",), "NATS_CA", "certificates of authorities to trust"),
    ("jetstream_domain", ("--js-domain",), "NATS_JS_DOMAIN", "domain of JetStream"),
    ("jetstream_api_prefix", ("--js-api-prefix",), "NATS_JS_API_PREFIX", "subjects of its API"),
    ("inbox_prefix", ("--inbox-prefix",), "NATS_INBOX_PREFIX", "subjects that answers come to"),
    ("timeout", ("--timeout",), "NATS_TIMEOUT", "longest wait for an answer [default: 5s]"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Address, credentials and output of one run. Empty texts: not given."""

    url: str = DEFAULT_URL
    user: str = ""
    password: str = ""
    token: str = ""
    creds: str = ""
    nkey: str = ""
    user_jwt: str = ""
    user_seed: str = ""
    cert: str = ""
    key: str = ""
    ca: str = ""
    tls_first: bool = False
    jetstream_domain: str = ""
    jetstream_api_prefix: str = ""
    inbox_prefix: str = ""
    timeout_s: float = 5.0
    output: str = "table"
    context: str = ""

    @property
    def servers(self) -> list[str]:
        """URLs of the servers to try, each with a scheme."""
        words = [word.strip() for word in self.url.split(",") if word.strip()]
        return [word if "://" in word else f"nats://{word}" for word in words]

    @property
    def api_prefix(self) -> str:
        """Subject that JetStream's API begins with, without a dot at its end."""
        if self.jetstream_api_prefix:
            return self.jetstream_api_prefix.rstrip(".")
        if self.jetstream_domain:
            return f"$JS.{self.jetstream_domain}.API"
        return "$JS.API"


def flag_options(*, is_root: bool) -> list[click.Parameter]:
    """Return the options that every command takes. Only at the root they read the environment and
    are shown by `--help`."""
    made: list[click.Parameter] = [
        click.Option(
            (f"given_{field}", *flags),  # no verb has an argument of such a name
            envvar=variable if is_root else None,
            show_envvar=is_root,
            help=text,
            hidden=not is_root,
            expose_value=False,
            callback=_keep(field),
            metavar="TEXT" if field != "timeout" else "DURATION",
        )
        for field, flags, variable, text in FLAGS
    ]
    made.append(
        click.Option(
            ("given_tls_first", "--tlsfirst"),
            is_flag=True,
            default=None,
            help="shake hands for TLS before the server has said anything",
            hidden=not is_root,
            expose_value=False,
            callback=_keep("tls_first"),
        )
    )
    made.append(
        click.Option(
            ("given_output", "-o", "--output"),
            type=click.Choice(FORMATS),
            default=None,
            help="tables for people, JSON or YAML for scripts [default: table]",
            hidden=not is_root,
            expose_value=False,
            callback=_keep("output"),
        )
    )
    return made


def _keep(field: str) -> Any:
    """Return the callback that keeps an option's value for `settings_of`; a later one wins."""

    def keep(context: click.Context, _: click.Parameter, value: str | bool | None) -> None:
        if value is not None:
            context.meta[_META + field] = value

    return keep


def settings_of(context: click.Context) -> Settings:
    """Return the settings of a run: flags and variables, else the context's, else defaults."""
    given = {
        key.removeprefix(_META): value
        for key, value in context.meta.items()
        if key.startswith(_META) and value != ""
    }
    named = given.pop("context", "") or context_files.selected()
    fields: dict[str, Any] = {}
    if named:
        fields = dict(context_files.load(named).fields)
        fields.pop("description", None)
    if not _LOGINS.isdisjoint(given):  # a login of the command line replaces the context's
        fields = {key: value for key, value in fields.items() if key not in _LOGINS}
    fields |= given
    timeout = fields.pop("timeout", "")
    if timeout:
        fields["timeout_s"] = parse_span(timeout) / 1e9
        if not fields["timeout_s"]:
            raise unusable(f"--timeout {timeout}: must be more than 0")
    for name in ("creds", "nkey", "cert", "key", "ca"):
        if fields.get(name):
            fields[name] = os.path.expanduser(fields[name])
    return Settings(**fields, context=named)


_LOGINS: Final = frozenset({"user", "password", "token", "creds", "nkey", "user_jwt", "user_seed"})
