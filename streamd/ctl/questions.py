"""Questions before something is destroyed.

A dangerous command asks at a terminal. `--yes` answers for it; without either the command does
nothing and ends with status 2.
"""

from __future__ import annotations

import sys

import click

from streamd.ctl.failures import unusable

yes_option = click.option("-y", "--yes", is_flag=True, help="Do it without a question.")


def confirm(deed: str, is_agreed: bool) -> None:
    """Return if the deed may be done. Raises CtlError if nobody agreed to it."""
    if is_agreed:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise unusable(f"{deed}: nobody was asked, so nothing was done", "add --yes to do it")
    if not click.confirm(f"{deed}?", default=False, err=True):
        raise unusable("nothing was done")
