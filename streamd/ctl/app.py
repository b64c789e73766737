"""The program `streamctl`: its root command, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click

from streamd import __version__
from streamd.cli.output_pipe import finish_output
from streamd.ctl.failures import FAILED, INTERRUPTED, CtlError
from streamd.ctl.settings import flag_options
from streamd.ctl.verbs import LateGroup
from streamd.errors import StreamdError, describe

PROGRAM: Final = "streamctl"


@click.group(
    name=PROGRAM,
    cls=LateGroup,
    params=flag_options(is_root=True),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Each command has an example: streamctl stream add --help",
)
@click.version_option(__version__, message=f"{PROGRAM}: v%(version)s")
def root() -> None:
    """Operate streamd and other NATS servers: streams, consumers, messages, servers, data."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    status = _run(list(sys.argv[1:] if arguments is None else arguments))
    return status if finish_output() else FAILED


def _run(given: list[str]) -> int:
    try:
        status = root.main(given, prog_name=PROGRAM, standalone_mode=False)
    except click.ClickException as err:
        err.show()
        return err.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except CtlError as err:
        _tell(str(err))
        if err.next_step:
            print(f"try: {err.next_step}", file=sys.stderr)
        return err.status
    except (StreamdError, OSError) as err:
        _tell(describe(err))
        return FAILED
    return status if isinstance(status, int) else 0


def _tell(text: str) -> None:
    print(f"{PROGRAM}: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
