"""The `streamd` program: nats-server's command line, start order, log lines, signals and exit.

Start: pid file, monitoring socket, store (recovery), client listener, ports file, "Server is
ready". Stop is the reverse. Whatever waits for a nats-server to come up can wait for this one.
"""

from __future__ import annotations

import os
import sys

from streamd import API_LEVEL, NATS_LEVEL, __version__
from streamd.cli import certificate_files, runfiles
from streamd.cli.output_pipe import print_whole
from streamd.config import flags
from streamd.config.options import Options
from streamd.errors import ConfigError, OpenClusterError, UnservedError
from streamd.obs.server_log import Log

NAME_OF_PEER = "nats-server"
_REFUSED = (
    "not started: the configuration asks for what this version does not serve. Remove it, or start"
    " with --ignore-unserved and without the protection it stands for"
)
_REFUSED_STRICTLY = "not started: --strict refuses what would only be warned of without it"


def main(arguments: list[str] | None = None) -> int:
    """Run the program; returns its exit status. A server that is called without `arguments` is the
    process, and ends it."""
    is_process = arguments is None
    program = os.path.basename(sys.argv[0]) or "streamd"
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        line = flags.parse(arguments)
        if line.wants_version or line.rest[:1] == ["version"]:
            print_whole(version_text(program))
            return 0
        if line.wants_help or line.rest[:1] == ["help"]:
            print_whole(flags.USAGE.format(program=program))
            return 0
        if line.rest:
            raise ConfigError(f'unrecognized command: "{line.rest[0]}"')
        if line.signal:
            from streamd.cli import signals

            signals.send(line.signal, program)
            return 0
        if line.is_test and not line.config_file:
            raise ConfigError(
                "must specify [-c, --config] option to check configuration file syntax"
            )
        options = flags.options_from(line)
        certificate_files.check(options)
    except flags.UsageError as err:
        print(f"{err}\n{flags.USAGE.format(program=program)}", file=sys.stderr)
        return 1
    except UnservedError as err:
        log = Log()
        for problem in err.problems:
            log.fatal(problem)
        reason = _REFUSED_STRICTLY if err.is_strict else _REFUSED
        print(f"{program}: {reason}", file=sys.stderr)
        return 1
    except OpenClusterError as err:
        Log().fatal(str(err))
        return 1
    except ConfigError as err:
        print(f"{program}: {err}", file=sys.stderr)
        return 1
    if line.is_test:
        for warning in options.warnings:
            print(f"{program}: warning: {warning}", file=sys.stderr)
        count = len(options.warnings)
        warnings = f", with {count} warning{'s' if count > 1 else ''}" if count else ""
        print(
            f"{program}: configuration file {options.config_file} is valid"
            f" ({options.config_digest}){warnings}",
            file=sys.stderr,
        )
        return 0
    return _run(line, options, program, is_process=is_process)


def version_text(program: str) -> str:
    """Text of `--version`. Under nats-server's name exactly the text that tools gate on."""
    if program == NAME_OF_PEER:
        return f"{program}: v{NATS_LEVEL}"
    return f"{program}: v{__version__} (compatible with {NAME_OF_PEER} v{NATS_LEVEL})"


def _run(
    line: flags.CommandLine, options: Options, program: str, *, is_process: bool = False
) -> int:
    try:
        log = Log(**options.log_settings)
    except OSError as err:
        reason = (err.strerror or "").lower()
        print(f"error opening file: open {options.log_file}: {reason}", file=sys.stderr)
        return 1
    _banner(options, log)
    if options.pid_file:
        try:
            runfiles.write_pid(options.pid_file)
        except OSError as err:
            reason = (err.strerror or "").lower()
            log.fatal(f"Could not write pidfile: open {options.pid_file}: {reason}")
            return 1

    def clean_up() -> None:
        if options.pid_file:
            runfiles.remove_pid(options.pid_file)
        log.close()

    def leave(status: int) -> None:
        clean_up()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    try:
        # Only now: what it imports costs more than all before, and `-t` or `--version` need none.
        from streamd.cli.process import ServerProcess

        return ServerProcess(line, options, log, program, leave if is_process else None).run()
    finally:
        clean_up()


def _banner(options: Options, log: Log) -> None:
    log.info("Starting streamd")
    log.info(f"  Version:  {__version__}")
    log.info(f"  Speaks:   {NAME_OF_PEER} {NATS_LEVEL}, JetStream API level {API_LEVEL}")
    log.debug(f"  Python:   {sys.version.split()[0]}")
    if options.config_file:
        log.info(f"Using configuration file: {options.config_file} ({options.config_digest})")
    for warning in options.warnings:
        log.warning(warning)


if __name__ == "__main__":
    sys.exit(main())
