"""nats-server's command line: flags with one or two dashes, `-f v` and `-f=v`, laid over a file.

Go's flag package is what tools were written against, so its rules hold: a boolean flag takes its
value only after `=`, a flag may be given twice (the last one wins) and the first word that is not
a flag ends them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from streamd.config import reader
from streamd.config.cluster_options import join_address, parse_cluster_url, parse_routes
from streamd.config.options import Options, finish
from streamd.config.tls_options import CertificatePair, TlsOptions
from streamd.errors import ConfigError, OpenClusterError, UnservedError
from streamd.limits import CLUSTER_PASSWORD_CHARS_MIN

USAGE = """
Usage: {program} [options]

Server Options:
    -a, --addr, --net <host>         Bind to host address (default: 0.0.0.0)
    -p, --port <port>                Use port for clients (default: 4222, -1: any free one)
    -n, --name
        --server_name <server_name>  Server name (default: auto)
    -P, --pid <file>                 File to store PID
    -m, --http_port <port>           Use port for http monitoring
    -ms,--https_port <port>          Use port for https monitoring
    -c, --config <file>              Configuration file
    -t                               Test configuration and exit
        --strict                     Take warnings about the configuration for errors
        --ignore-unserved            Start although the configuration has protective settings that
                                     this version does not serve, without their protection. Each
                                     start logs which
    -sl,--signal <signal>[=<pid>]    Send signal to a server process
                                     (ldm, stop, quit, term, reopen, reload)
                                     <pid> can be a PID (e.g. 4711) or the path to a PID file
        --client_advertise <string>  Client URL to advertise to other servers
        --ports_file_dir <dir>       Creates a ports file in the specified directory
                                     (<executable_name>_<pid>.ports).

Logging Options:
    -l, --log <file>                 File to redirect log output
    -T, --logtime                    Timestamp log entries (default: true)
        --logtime_utc                Timestamps in UTC instead of local timezone (default: false)
    -D, --debug                      Enable debugging output
    -V, --trace                      Trace the raw protocol
    -VV                              Verbose trace
    -DV                              Debug and trace
    -DVV                             Debug and verbose trace
        --log_size_limit <limit>     Logfile size limit (default: none)
        --max_traced_msg_len <len>   Maximum printable length for traced messages
                                     (default: unlimited)

JetStream Options:
    -js, --jetstream                 Enable JetStream functionality
    -sd, --store_dir <dir>           Set the storage directory
        --accept-loss[=dry-run]      Start a single server although its log, snapshots or blocks
                                     are damaged or gone: continue with what is left, keep the old
                                     files. In a cluster: rebuild streams whose only copy is here;
                                     if all voters of a stream, or of the meta group, lost their
                                     logs, let the member with the longest log lead once all
                                     servers are up. Use it for one start only. With =dry-run:
                                     print what would be kept, lost and forgotten, and exit;
                                     changes no file, serves no client

Authorization Options:
        --user <user>                User required for connections
        --pass <password>            Password required for connections
        --auth <token>               Authorization token required for connections

TLS Options:
        --tls                        Enable TLS for clients: with certificate and key
                                     (default: false; =false takes away the file's)
        --tlscert <file>             Server certificate file
        --tlskey <file>              Private key for server certificate
        --tlsverify                  Enable TLS, verify client certificates
        --tlscacert <file>           Client certificate CA for verification

Cluster Options:
        --routes <rurl-1, rurl-2>    Routes to solicit and connect
        --cluster <cluster-url>      Cluster URL for solicited routes
        --cluster_name <string>      Cluster Name; without JetStream it may be left out, and any
                                     other is accepted
        --no_advertise               Do not advertise known cluster information to clients
        --cluster_advertise <string> Cluster URL to advertise to other servers
        --connect_retries <number>   For implicit routes, number of connect retries
        --cluster_listen <url>       Cluster url from which members can solicit routes
        --insecure-cluster           Start although the cluster's port can be reached from other
                                     machines, and has neither password nor TLS: every process
                                     that reaches the port can join, read and change everything

Not served by this version:
    -s -r --profile                  accepted with a warning

Common Options:
    -h, --help                       Show this message
    -v, --version                    Show version
"""


class UsageError(ConfigError):
    """A command line that cannot be understood: the usage text should follow the message."""


FlagValue: TypeAlias = str | int | bool
_Apply: TypeAlias = Callable[[Options, FlagValue], None]


@dataclass(slots=True)
class CommandLine:
    """Settings of the command line, before the configuration file is read."""

    wants_help: bool = False
    wants_version: bool = False
    is_test: bool = False  # -t: check the configuration and exit
    signal: str = ""  # -sl: `signal[=pid]`
    config_file: str = ""
    settings: list[tuple[str, FlagValue]] = field(default_factory=list)  # canonical flag, value
    rest: list[str] = field(default_factory=list)


def _set(*attributes: str) -> _Apply:
    def apply(options: Options, value: FlagValue) -> None:
        for attribute in attributes:
            setattr(options, attribute, value)

    return apply


def _set_accept_loss(options: Options, value: FlagValue) -> None:
    options.accepts_loss = bool(value)
    options.is_dry_run = value == _DRY_RUN


def _set_jetstream(attribute: str) -> _Apply:
    return lambda options, value: setattr(options.jetstream, attribute, value)


def _set_cluster(attribute: str, convert: Callable[[FlagValue], object]) -> _Apply:
    def apply(options: Options, value: FlagValue) -> None:
        change: dict[str, Any] = {attribute: convert(value)}
        options.cluster = replace(options.cluster, **change)

    return apply


def _set_cluster_url(options: Options, url: FlagValue) -> None:
    """Lay the command line's address over the file's; its credentials replace the file's."""
    options.cluster_place = ("", 0, 0)
    if not url:
        options.cluster = replace(options.cluster, port=0)
        return
    host, port, username, password = parse_cluster_url(str(url))
    options.cluster = replace(
        options.cluster, host=host, port=port, username=username, password=password
    )


# name -> (aliases, kind, what it does to the options). None: it is not about them, or not served.
_TEXT, _NUMBER, _BOOLEAN = "text", "number", "boolean"
_DRY_RUN = "dry-run"
_FLAGS: dict[str, tuple[str, str, _Apply | None]] = {
    "addr": ("a addr net host", _TEXT, _set("host")),
    "port": ("p port", _NUMBER, _set("port")),
    "server_name": ("n name server_name", _TEXT, _set("server_name")),
    "pid": ("P pid", _TEXT, _set("pid_file")),
    "http_port": ("m http_port", _NUMBER, _set("http_port")),
    "https_port": ("ms https_port", _NUMBER, _set("https_port")),
    "config": ("c config", _TEXT, None),
    "t": ("t", _BOOLEAN, None),
    "signal": ("sl signal", _TEXT, None),
    "client_advertise": ("client_advertise", _TEXT, _set("client_advertise")),
    "ports_file_dir": ("ports_file_dir", _TEXT, _set("ports_file_dir")),
    "log": ("l log", _TEXT, _set("log_file")),
    "logtime": ("T logtime", _BOOLEAN, _set("has_logtime")),
    "logtime_utc": ("logtime_utc", _BOOLEAN, _set("is_logtime_utc")),
    "debug": ("D debug", _BOOLEAN, _set("is_debug")),
    "trace": ("V trace", _BOOLEAN, _set("is_trace")),
    "VV": ("VV", _BOOLEAN, _set("is_trace", "is_trace_verbose")),
    "DV": ("DV", _BOOLEAN, _set("is_debug", "is_trace")),
    "DVV": ("DVV", _BOOLEAN, _set("is_debug", "is_trace", "is_trace_verbose")),
    "log_size_limit": ("log_size_limit", _NUMBER, _set("log_size_limit")),
    "max_traced_msg_len": ("max_traced_msg_len", _NUMBER, _set("max_traced_msg_len")),
    "jetstream": ("js jetstream", _BOOLEAN, _set_jetstream("is_enabled")),
    "store_dir": ("sd store_dir", _TEXT, _set_jetstream("store_dir")),
    "ignore_unserved": (
        "ignore-unserved ignore_unserved",
        _BOOLEAN,
        _set("ignores_unserved"),
    ),
    "strict": ("strict", _BOOLEAN, _set("is_strict")),
    "accept_loss": ("accept-loss accept_loss", _BOOLEAN, _set_accept_loss),
    "user": ("user", _TEXT, _set("username")),
    "pass": ("pass", _TEXT, _set("password")),
    "auth": ("auth", _TEXT, _set("token")),
    "routes": ("routes", _TEXT, _set_cluster("routes", lambda text: parse_routes(str(text)))),
    "cluster": ("cluster cluster_listen", _TEXT, _set_cluster_url),
    "cluster_name": ("cluster_name", _TEXT, _set_cluster("name", str)),
    "cluster_advertise": ("cluster_advertise", _TEXT, _set_cluster("advertise", str)),
    "no_advertise": (
        "no_advertise",
        _BOOLEAN,
        _set_cluster("has_advertise", lambda is_silent: not is_silent),
    ),
    "insecure_cluster": (
        "insecure-cluster insecure_cluster",
        _BOOLEAN,
        _set("allows_open_cluster"),
    ),
    "connect_retries": ("connect_retries", _NUMBER, _set_cluster("connect_retries", int)),
    # Together: see `_settle_tls`.
    "tls": ("tls", _BOOLEAN, None),
    "tlscert": ("tlscert", _TEXT, None),
    "tlskey": ("tlskey", _TEXT, None),
    "tlsverify": ("tlsverify", _BOOLEAN, None),
    "tlscacert": ("tlscacert", _TEXT, None),
    "help": ("h help", _BOOLEAN, None),
    "help_tls": ("help_tls", _BOOLEAN, None),
    "version": ("v version", _BOOLEAN, None),
    # Known to nats-server, not served here yet.
    "syslog": ("s syslog", _BOOLEAN, None),
    "remote_syslog": ("r remote_syslog", _TEXT, None),
    "profile": ("profile", _NUMBER, None),
}
_BY_NAME = {
    alias: (name, kind) for name, (aliases, kind, _) in _FLAGS.items() for alias in aliases.split()
}
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")


def parse(arguments: list[str]) -> CommandLine:
    """Read the command line (without the program's name). Raises UsageError."""
    line = CommandLine()
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if len(word) < 2 or word[0] != "-":
            break
        at += 1
        if word == "--":
            break
        name, equals, text = word[2 if word.startswith("--") else 1 :].partition("=")
        if not name or name[0] == "-":
            raise UsageError(f"bad flag syntax: {word}")
        if name not in _BY_NAME:
            raise UsageError(f"flag provided but not defined: -{name}")
        canonical, kind = _BY_NAME[name]
        if kind is not _BOOLEAN and not equals:
            if at == len(arguments):
                raise UsageError(f"flag needs an argument: -{name}")
            text = arguments[at]
            at += 1
        _take(line, canonical, _convert(kind, name, text if equals or kind != _BOOLEAN else "true"))
    line.rest = arguments[at:]
    return line


def _convert(kind: str, name: str, text: str) -> FlagValue:
    if _BY_NAME[name][0] == "accept_loss" and text == _DRY_RUN:
        return text
    if kind is _BOOLEAN:
        if text not in _TRUE + _FALSE:
            raise UsageError(f'invalid boolean value "{text}" for -{name}: parse error')
        return text in _TRUE
    if kind is _NUMBER:
        try:
            return int(text, 10)
        except ValueError as err:
            raise UsageError(f'invalid value "{text}" for flag -{name}: parse error') from err
    return text


def _take(line: CommandLine, name: str, value: FlagValue) -> None:
    if name == "help" or name == "help_tls":
        line.wants_help = bool(value)
    elif name == "version":
        line.wants_version = bool(value)
    elif name == "t":
        line.is_test = bool(value)
    elif name == "signal":
        line.signal = str(value)
    elif name == "config":
        line.config_file = str(value)
    else:
        line.settings.append((name, value))


def options_from(line: CommandLine) -> Options:
    """Return the finished options: defaults, then the configuration file, then the flags."""
    options = reader.load(line.config_file) if line.config_file else Options(auth_timeout_s=0)
    for name, value in line.settings:
        apply = _FLAGS[name][2]
        if apply is not None:
            apply(options, value)
        elif not name.startswith("tls"):
            options.warnings.append(f"flag -{name} is not served by this version and is ignored")
    _settle_tls(options, {name: value for name, value in line.settings if name.startswith("tls")})
    _settle_credentials(options, {name for name, value in line.settings if value})
    if any(name == "routes" for name, _ in line.settings) and not options.cluster.is_enabled:
        raise ConfigError("solicited routes require cluster capabilities, e.g. --cluster")
    _judge_unserved(options)
    finish(options)
    _refuse_open_cluster(options)
    if options.is_strict and options.warnings:
        raise UnservedError(options.warnings, is_strict=True)
    return options


def _settle_credentials(options: Options, given: set[str]) -> None:
    """Settle the credentials when the file and the flags `given` both name users: users of the
    file, else a token, else a user and its password. So it is in nats-server. A flag never takes
    `users` away: an empty one, or a password alone, would leave the server open to all."""
    if options.is_open_besides_system:
        # The file lets in all beside the system's users; the command line says who they must be.
        options.is_open_besides_system = not given & {"user", "auth"}
    elif options.users:
        options.username = options.password = options.token = ""
    if options.token:
        options.username = options.password = ""


def _settle_tls(options: Options, given: dict[str, Any]) -> None:
    """Lay the flags about TLS over the file's block. `--tls=false` takes it away; any other flag
    brings TLS, with the certificate and the key that flags name: an empty name is a variable that
    was not set, not a wish for plain text. So it is in nats-server. Raises ConfigError."""
    if not given:
        return
    if given.get("tls") is False:
        options.tls = None
        return
    if not given.get("tlscert"):
        raise ConfigError("TLS Server certificate must be present and valid")
    if not given.get("tlskey"):
        raise ConfigError("TLS Server private key must be present and valid")
    of_file = options.tls or TlsOptions()
    options.tls = replace(
        of_file,
        certificates=(CertificatePair(given["tlscert"], given["tlskey"]),),
        ca_file=given.get("tlscacert", ""),
        is_verifying=given.get("tlsverify", False) or of_file.is_mapping,
        place=("", 0, 0),
    )


def _refuse_open_cluster(options: Options) -> None:
    """Refuse a cluster that anybody can join, unless told to have it so. Raises
    OpenClusterError, which names the place of the cluster block."""
    address = join_address(options.cluster.host, options.cluster.port)
    if not options.cluster.is_open:
        if options.cluster.has_guessable_password:
            options.warnings.append(
                f"cluster.authorization.password is shorter than {CLUSTER_PASSWORD_CHARS_MIN}"
                f" characters: who reaches {address} can try passwords at home"
            )
        return
    if not options.allows_open_cluster:
        raise OpenClusterError(
            f"cluster: anybody who reaches {address} could join: set cluster.authorization.user and"
            " .password, or cluster.tls, or a loopback address; or start with --insecure-cluster",
            *options.cluster_place,
        )
    options.warnings.append(
        f"--insecure-cluster: whoever reaches {address} can join this cluster, and read and change"
        " everything in it"
    )


def _judge_unserved(options: Options) -> None:
    """Refuse settings that protect and are not served, unless told to ignore them.

    Raises UnservedError. Ignored ones become warnings, so that every start tells of them.
    """
    if not options.unserved:
        return
    if not options.ignores_unserved:
        raise UnservedError(options.unserved)
    options.warnings += [f"{problem}: ignored" for problem in options.unserved]
    options.warnings.append(
        f"--ignore-unserved: settings that protect are NOT IN FORCE: {len(options.unserved)}"
    )
