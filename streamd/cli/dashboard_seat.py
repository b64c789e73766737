"""`DashboardSeat`: the dashboard's place in a server.

What is there from the start is small: the last events, and who may log in. The rest is loaded when
somebody connects to the monitoring port, or another node's dashboard asks for what is here.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from streamd.config.options import Options
from streamd.net.accounts.account_spaces import Accounts
from streamd.net.client.auth import OutsideLogins
from streamd.net.client.password_checks import PasswordChecks
from streamd.net.dashboard.event_log import AdvisoryWires, EventLog
from streamd.net.dashboard.logins import Logins
from streamd.net.dashboard.surroundings import Surroundings
from streamd.net.monitoring.http import Mount
from streamd.net.monitoring.jetstreamz import JetStreamSources
from streamd.net.monitoring.sliced_pages import Slicer
from streamd.obs.server_log import Log

if TYPE_CHECKING:
    from aiohttp import web

    from streamd.api.router import Router
    from streamd.net.dashboard.dashboard import Dashboard
    from streamd.net.dashboard.pages import Pages
    from streamd.net.dashboard.peer_questions import PeerAnswers
    from streamd.node.ports import Answer
    from streamd.types import NodeId

_PREFIX = "dashboard."  # of the questions of other nodes: net/dashboard/peer_questions.py


class DashboardSeat:
    """Parts of the dashboard, made as they are needed. All methods but `load` and the log's tap are
    called on the loop."""

    def __init__(
        self,
        around: Surroundings,
        accounts: Accounts,
        slicer: Slicer,
        log: Log,
        outside: Callable[[], OutsideLogins | None],
        create_task: Callable[..., asyncio.Task[None]],
    ) -> None:
        self._around = around
        self._accounts = accounts
        self._slicer = slicer
        self._log = log
        self._create_task = create_task
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._checks = PasswordChecks()
        self._logins = Logins(around.options, outside, self._checks)
        self._events = EventLog(
            time.time_ns, self._loop.time, self._loop.call_later, self._spaces, self._stream_of
        )
        self._pages: Pages | None = None
        self._answers: PeerAnswers | None = None
        self._dashboard: Dashboard | None = None
        log.tap = self._on_line

    def attach(self, sources: JetStreamSources, api: Router) -> None:
        """Show streams from here on, to other nodes as well."""
        self._around.sources, self._around.api = sources, api
        if sources.node.is_clustered:
            sources.node.on_call_prefix(_PREFIX, self._serve_peer)

    def load(self) -> Mount:
        """Import what a browser needs; for another thread than the loop's."""
        from streamd.net.dashboard.actions import Actions
        from streamd.net.dashboard.dashboard import Dashboard

        def mount(app: web.Application, base: str) -> None:
            pages = self._obtain_pages()
            actions = Actions(self._around, self._accounts.wires, lambda: pages.questions)
            self._dashboard = Dashboard(
                self._around, pages, actions, self._events, self._logins, self._slicer
            )
            self._dashboard.mount(app, base)

        return mount

    def reloaded(self, options: Options) -> None:
        """Judge logins by another configuration from here on; sessions that it does not let in
        end."""
        self._around.options = options
        self._logins.reload(options)
        if self._dashboard is not None:
            self._dashboard.reloaded()

    def close(self) -> None:
        """Listen to nothing any more."""
        self._log.tap = None
        self._events.close()
        self._checks.close()

    def _obtain_pages(self) -> Pages:
        if self._pages is None:
            from streamd.net.dashboard.pages import Pages
            from streamd.node.clock import SystemClock

            self._pages = Pages(self._around, self._slicer, SystemClock(), self._loop.time)
        return self._pages

    def _serve_peer(self, sender: NodeId, method: str, args: list[object], answer: Answer) -> None:
        if self._answers is None:
            from streamd.net.dashboard.peer_questions import PeerAnswers

            self._answers = PeerAnswers(
                self._obtain_pages(), self._slicer, self._create_task, self._log
            )
        self._answers.serve(sender, method, args, answer)

    # --- events ---------------------------------------------------------------------------------

    def _on_line(self, level: str, text: str, fields: Mapping[str, object]) -> None:
        if threading.get_ident() == self._thread:
            self._events.on_line(level, text, fields)
        else:
            self._loop.call_soon_threadsafe(self._events.on_line, level, text, fields)

    def _spaces(self) -> Iterable[tuple[str, AdvisoryWires]]:
        return [(name, self._accounts.router(name)) for name in self._accounts.names()]

    def _stream_of(self, uid: int) -> tuple[str, str] | None:
        node = self._around.node
        asset = node.meta.streams_by_uid.get(uid) if node is not None else None
        return (asset.account, asset.name) if asset is not None else None
