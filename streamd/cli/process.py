"""A running server: builds its parts, joins them, obeys signals and takes them down again."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streamd import NATS_LEVEL
from streamd.cli import addresses, certificate_files, process_resources, runfiles
from streamd.cli.dashboard_seat import DashboardSeat
from streamd.cli.freed_memory import FreedMemory, find_trim
from streamd.cli.operator_controls import OperatorControls
from streamd.cli.outside_judge import LoginSurroundings, OutsideJudge
from streamd.config import changes, flags
from streamd.config.cluster_options import join_address
from streamd.config.options import JetStreamOptions, Options
from streamd.config.tls_options import TlsOptions
from streamd.durations import format_duration
from streamd.errors import ConfigError, CorruptionError, DiskError, describe
from streamd.limits import HTTP_BACKLOG, HTTP_CONNECTIONS_MAX, SHUTDOWN_S, UNSERVED_AT_STOP_S
from streamd.net.accounts.account import Account
from streamd.net.accounts.account_links import AccountLinks
from streamd.net.accounts.account_spaces import Accounts
from streamd.net.accounts.request_info import ServerFacts
from streamd.net.client.auth import has_plain_passwords
from streamd.net.client.client_registry import ClientRegistry
from streamd.net.client.listener import Listener
from streamd.net.dashboard.surroundings import Surroundings
from streamd.net.monitoring.documents import Monitoring, resident_bytes
from streamd.net.monitoring.http import HttpServer
from streamd.net.monitoring.jetstreamz import JetStreamSources
from streamd.net.monitoring.server_stats import ServerStats
from streamd.net.monitoring.sliced_pages import Slicer
from streamd.net.sockets import listening_socket
from streamd.net.system.clients_by_account import ClientsByAccount
from streamd.net.system.server_description import ServerDescription
from streamd.net.system.system_account import SystemAccount
from streamd.net.system.trace_events import TraceEvents
from streamd.net.tls.handshakes import Handshakes
from streamd.node.clock import SystemClock
from streamd.obs.server_log import Log
from streamd.store.frames.keyring import EncryptionKeys

if TYPE_CHECKING:
    from streamd.net.leaf.leaf_nodes import LeafNodes
    from streamd.net.pubsub.message_router import MessageRouter
    from streamd.net.route.links import ClusterLinks
    from streamd.net.tls.acceptor import TlsAcceptor
    from streamd.net.websocket.websocket_listener import WebSocketListener
    from streamd.node.local_node import LocalNode

_SIGNAL_WORDS = {  # as Go names them: tools read these lines
    signal.SIGINT: "interrupt",
    signal.SIGTERM: "terminated",
    signal.SIGQUIT: "quit",
    signal.SIGHUP: "hangup",
    signal.SIGUSR1: "user defined signal 1",
    signal.SIGUSR2: "user defined signal 2",
}


class StartError(Exception):
    """The server can't start; the text goes to the log as the reason."""


class ServerProcess:
    """Owns everything a server consists of. `run` returns the exit status."""

    def __init__(
        self,
        line: flags.CommandLine,
        options: Options,
        log: Log,
        program: str,
        leave: Callable[[int], None] | None = None,
    ) -> None:
        """`leave(status)`, if it is given, ends the process: the interpreter's own end takes
        longer than the rest of a stop, and clients that reconnect would meet it."""
        self._line = line
        self._options = options
        self._log = log
        self._program = program
        self._leave = leave
        self._logins = OutsideJudge(options)
        self._server_id = self._logins.keys.server_id
        self._server_name = options.server_name or _default_name(options)
        self._node: LocalNode | None = None
        self._cluster: ClusterLinks | None = None
        self._leaf: LeafNodes | None = None
        self._listener: Listener | None = None
        self._websocket: WebSocketListener | None = None
        self._http: HttpServer | None = None
        self._dashboard: DashboardSeat | None = None
        self._http_tls: TlsAcceptor | None = None
        self._handshakes = Handshakes()  # of TLS, for all that listens
        self._ports_file = ""
        self._exit_status = 0
        self._is_started = False
        self._is_stopping = False
        self._draining: asyncio.Task[None] | None = None  # lame duck
        self._freed_memory: FreedMemory | None = None
        self._postponed: list[Callable[[], object]] = []  # what signals asked for during the start

    def run(self) -> int:
        """Serve until told to stop."""
        process_resources.tune_interpreter()
        try:
            import uvloop
        except ImportError:
            return asyncio.run(self._main())
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                return runner.run(self._main())
            finally:
                process_resources.leave_interpreter()

    async def _main(self) -> int:
        if self._options.is_dry_run:
            return await self._dry_run()
        self._stop_wanted = asyncio.Event()
        self._log.info(f"  Name:     {self._server_name}")
        self._log.info(f"  ID:       {self._server_id}")
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._install_signals()
                try:
                    await self._start()
                    await self._stop_wanted.wait()
                finally:
                    await self._stop()
        except* StartError as failures:
            self._log.fatal(str(failures.exceptions[0]))
            self._exit_status = 1
        else:
            self._ignore_signals()
            self._log.info("Server Exiting..")
        if self._leave is not None:
            if self._listener is not None:
                self._listener.refuse()
            self._leave(self._exit_status)
        return self._exit_status

    async def _dry_run(self) -> int:
        """Say what `--accept-loss` would come to; returns the exit status."""
        from streamd.node.recovery.dry_run import DryRun

        options = self._options
        js = options.jetstream
        store_dir = os.path.abspath(js.store_dir or process_resources.default_store_dir())
        if not os.path.isdir(store_dir):
            self._log.fatal(f"dry run: there is no store directory {store_dir!r}")
            return 1
        run = DryRun(
            store_dir=store_dir,
            server_name=self._server_name,
            cluster_name=options.cluster.name if options.is_clustered else "",
            sync="always" if js.is_sync_always else js.sync_interval_ns / 1e9,
            log=self._log,
            tell=print,
            encryption=_encryption_of(js),
        )
        try:
            await run.run()
        except (ConfigError, CorruptionError, DiskError, OSError) as err:
            self._log.fatal(f"dry run: {describe(err)}")
            return 1
        return 0

    # --- start --------------------------------------------------------------------------------

    async def _start(self) -> None:
        options, log = self._options, self._log
        self._accounts = accounts = Accounts(
            options.accounts, options.system_account, domain=options.jetstream.domain
        )
        clients = ClientRegistry(options.max_closed_clients)
        by_account = ClientsByAccount()
        self._stats = stats = ServerStats(clients, accounts, by_account.of)
        self._monitoring = Monitoring(
            options,
            stats=stats,
            server_id=self._server_id,
            server_name=self._server_name,
        )
        self._slicer = Slicer(asyncio.get_running_loop().call_soon)
        description = ServerDescription(
            options,
            server_id=self._server_id,
            server_name=self._server_name,
            has_jetstream=options.jetstream.is_enabled,
        )
        controls = OperatorControls(clients, self._reload, self._lame_duck, lambda: self._node)
        self._system = system = SystemAccount(
            stats,
            self._monitoring,
            description,
            self._slicer,
            asyncio.get_running_loop(),
            controls,
        )
        self._make_dashboard(controls)
        accounts.on_made(system.serve_account)
        accounts.tracing.send = TraceEvents(description, accounts.router).send
        self._account_links = AccountLinks(
            options.system_account,
            server=ServerFacts(self._server_name, options.cluster.name),
            monotonic_ns=time.monotonic_ns,
            wall_ns=time.time_ns,
            call_later=asyncio.get_running_loop().call_later,
            random_below=secrets.randbelow,
            has_system_services=False,  # each account's own are answered in its subject space
        )
        self._link_accounts()
        try:
            await self._logins.start(
                options,
                accounts,
                clients.open,
                LoginSurroundings(
                    description, system.answers, log, self._link_changed, self._tasks.create_task
                ),
            )
        except ConfigError as err:
            raise StartError(str(err)) from err
        if options.has_http:
            self._start_http()
        if options.cluster.is_enabled:
            from streamd.net.route.links import ClusterLinks

            self._cluster = ClusterLinks(
                options,
                server_name=self._server_name,
                log=log,
                clock=SystemClock(),
                loop=asyncio.get_running_loop(),
                server_id=self._server_id,
                handshakes=self._handshakes,
            )
        if options.jetstream.is_enabled:
            await self._start_jetstream()
        if self._cluster is not None:
            await self._start_cluster(self._cluster)
        self._listener = Listener(
            options,
            accounts,
            clients,
            server_id=self._server_id,
            server_name=self._server_name,
            has_jetstream=self._node is not None,
            log=log,
            connections_max=process_resources.connections_max(),
            handshakes=self._handshakes,
            outside=self._logins.judge,
        )
        self._monitoring.attach_pins(self._logins.pinned_fails)
        self._listener.info.set_xkey(self._logins.keys.xkey_public)
        self._listener.connections.observe(by_account)
        accounts.counts.end_client = self._listener.end_surplus
        system.observe(self._listener.connections)
        # The last to listen is the one that is waited for by whoever starts a server.
        if options.websocket.is_enabled:
            await self._start_websocket(self._listener)
        try:
            if options.port > 65535:  # uvloop would take it modulo 65536
                raise OverflowError(options.port)
            await self._listener.start()
        except (OSError, OverflowError) as err:
            text = addresses.listen_error("port", options.host, options.port, err)
            raise StartError(text) from err
        if self._cluster is not None:
            self._share_urls(self._cluster)
        if options.leaf.is_enabled or options.leaf.remotes:
            await self._start_leaf()
        self._start_trimming()
        self._is_started = True
        self._monitoring.is_ready = True
        self._monitoring.client_port = self._listener.port
        system.start()
        listened = join_address(options.host, self._listener.port)
        log.info(f"Listening for client connections on {listened}")
        self._log_tls()
        self._warn_of_passwords()
        if options.ports_file_dir:
            self._write_ports()
        log.info("Server is ready")
        for action in self._postponed:
            action()

    def _make_dashboard(self, controls: OperatorControls) -> None:
        """Make what the dashboard of this server, and those of other nodes, ask."""
        if not (self._options.has_http or self._options.is_clustered):
            return
        around = Surroundings(
            self._options,
            self._monitoring,
            self._stats,
            controls,
            server_id=self._server_id,
            server_name=self._server_name,
            cluster=lambda: self._cluster,
        )
        self._dashboard = DashboardSeat(
            around,
            self._accounts,
            self._slicer,
            self._log,
            lambda: self._logins.judge,
            self._tasks.create_task,
        )

    def _link_accounts(self) -> None:
        """Make imports and mappings as the accounts' options say."""
        for text in self._account_links.apply(self._accounts.known()):
            self._log.warning(text)

    def _link_changed(self, names: Iterable[str]) -> None:
        """Make imports and mappings of accounts that changed, and of those that import of them."""
        for text in self._account_links.change(self._accounts.known(), names):
            self._log.debug(text)

    def _warn_of_passwords(self) -> None:
        if has_plain_passwords(self._options):
            self._log.warning("Plaintext passwords detected, use nkeys or bcrypt")

    def _log_tls(self) -> None:
        tls, log = self._options.tls, self._log
        if tls is None:
            return
        if self._options.allows_non_tls:
            log.info("TLS available for client connections")
        else:
            log.info("TLS required for client connections")
        if tls.is_first and not tls.first_delay_ns:
            log.warning(
                'Clients that are not using "TLS Handshake First" option will fail to connect'
            )

    async def _start_websocket(self, clients: Listener) -> None:
        from streamd.net.websocket.websocket_listener import WebSocketListener

        settings, log = self._options.websocket, self._log
        try:
            listener = WebSocketListener(
                self._options,
                clients,
                server_id=self._server_id,
                server_name=self._server_name,
                has_jetstream=self._node is not None,
                handshakes=self._handshakes,
            )
            if settings.port > 65535:
                raise OverflowError(settings.port)
            await listener.start()
        except ConfigError as err:
            raise StartError(str(err)) from err
        except (OSError, OverflowError) as err:
            text = addresses.listen_reason(settings.host, settings.port, err)
            raise StartError(f"Unable to listen for websocket connections: {text}") from err
        self._websocket = listener
        self._monitoring.websocket_port = listener.port
        address = join_address(settings.host, listener.port)
        log.info(f"Listening for websocket clients on {listener.scheme}://{address}")
        if settings.tls is None:
            log.warning("Websocket not configured with TLS. DO NOT USE IN PRODUCTION!")

    async def _start_leaf(self) -> None:
        """Listen for leaf nodes, and dial the hubs that are configured."""
        from streamd.cli import leaf_streams
        from streamd.net.leaf.leaf_nodes import LeafAccounts, LeafNodes
        from streamd.net.leaf.leaf_session import LocalEnd

        options, node = self._options, self._node
        leaf, domain = options.leaf, options.jetstream.domain
        local = LocalEnd(
            server_id=self._server_id,
            server_name=self._server_name,
            cluster=options.cluster.name if options.cluster.is_enabled else "",
            domain=domain if node is not None else "",
            has_jetstream=node is not None,
            max_payload=options.max_payload,
            min_version=leaf.min_version,
            is_isolating=leaf.is_isolating,
        )
        known = self._accounts

        def router_of(name: str) -> MessageRouter | None:
            account = known.get(name)
            return account.router if account is not None else None

        accounts = LeafAccounts(
            router_of,
            leaf_streams.finder(node, domain, lambda name: known.jetstream(name) is not None),
            lambda name: known.counts.leafs_max(known.obtain(name)),
            self._on_links_changed,
        )
        loop = asyncio.get_running_loop()
        judge = self._logins.judge
        self._leaf = nodes = LeafNodes(
            options, local, accounts, self._log, self._handshakes, loop, judge
        )
        self._logins.attach_leafs(nodes)
        try:
            await nodes.start(self._tasks.create_task)
        except ConfigError as err:
            raise StartError(str(err)) from err
        except (OSError, OverflowError) as err:
            text = addresses.listen_error("leafnode port", leaf.host, leaf.port, err)
            raise StartError(text) from err
        known.counts.leafs_here = nodes.count_of
        self._monitoring.attach_leafs(nodes)
        self._stats.leafs_of = nodes.rows_of
        if self._websocket is not None and leaf.is_enabled:
            self._websocket.serve_leafs(nodes.make_websocket_link)
        if node is not None:
            node.watch_streams(nodes.streams_changed)
            node.watch_leaders(nodes.streams_changed)

    def _on_links_changed(self, account: str) -> None:
        """Tell others that an account has other leaf links now."""
        self._accounts.counts.changed(self._accounts.obtain(account))
        # Soon: the link is about to be among those that are up.
        changed = self._system.account_events.links_changed
        asyncio.get_running_loop().call_soon(changed, account)

    def _start_http(self) -> None:
        """Listen at once; the HTTP library itself is loaded when somebody connects."""
        options = self._options
        host, port = options.http_host or options.host, options.https_port or options.http_port
        try:
            listening = listening_socket(host, port, HTTP_BACKLOG)
        except (OSError, OverflowError) as err:
            text = addresses.listen_error("monitoring port", host, port, err)
            raise StartError(f"Can't start monitoring: {text}") from err
        secure = None
        if options.https_port:
            self._http_tls = self._make_http_tls()
            secure = self._http_tls.accept
        assert self._dashboard is not None
        self._http = HttpServer(
            listening,
            self._monitoring,
            self._slicer,
            self._log,
            options.http_base_path,
            secure,
            self._dashboard.load,
        )
        self._http.start(self._tasks)
        if options.https_port:
            self._monitoring.https_port = self._http.port
        else:
            self._monitoring.http_port = self._http.port
        scheme = "https" if options.https_port else "http"
        self._log.info(f"Starting {scheme} monitor on {join_address(host, self._http.port)}")

    def _make_http_tls(self) -> TlsAcceptor:
        from streamd.net.tls.acceptor import TO_HTTP, TlsAcceptor

        try:
            return TlsAcceptor(
                _of_monitoring(self._options),
                self._handshakes,
                waiting_max=HTTP_CONNECTIONS_MAX,
                to_plain=TO_HTTP,
            )
        except ConfigError as err:
            raise StartError(f"Can't start monitoring: {err}") from err

    async def _start_cluster(self, cluster: ClusterLinks) -> None:
        """Listen for other servers and dial those that are configured."""
        from streamd.net.route.remote_messages import Exchange

        options = self._options.cluster
        exchange = Exchange(cluster, self._accounts.obtain)

        def connect(account: Account) -> None:
            exchange.connect(account.router, account.name)

        self._accounts.on_made(connect)
        self._accounts.counts.join(cluster, self._server_name)
        self._open_gate(cluster)
        self._monitoring.attach_cluster(cluster)
        try:
            await cluster.start(self._tasks)
        except (OSError, OverflowError) as err:
            text = addresses.listen_error("cluster port", options.host, options.port, err)
            raise StartError(text) from err
        except ConfigError as err:
            raise StartError(str(err)) from err

    def _open_gate(self, cluster: ClusterLinks) -> None:
        """Serve clients of servers without JetStream by way of those that have it."""
        from streamd.net.route.jetstream_gateway import Gate, GatewayServer, GatewayStream

        node, accounts = self._node, self._accounts
        if node is not None and not node.is_clustered:
            return
        gate = Gate(cluster, accounts.obtain)
        if node is None:
            gate.take_answers(cluster)

            def open_to(account: Account) -> None:
                router = account.router
                table = router.subscriptions.table
                stream = GatewayStream(
                    account.name, table, router.publish, cluster, self._server_name
                )
                gate.add(account.name, stream)

        else:
            call_soon = asyncio.get_running_loop().call_soon
            domain = self._options.jetstream.domain

            def open_to(account: Account) -> None:
                def stream_subjects() -> Iterator[str]:
                    for asset in node.meta.streams_of(account.name):
                        yield from asset.config.get("subjects") or ()

                server = GatewayServer(
                    account.name, account.router, stream_subjects, cluster, call_soon, domain
                )
                gate.add(account.name, server)
                node.watch_streams(server.streams_changed)

        accounts.on_made(open_to)

    def _share_urls(self, cluster: ClusterLinks) -> None:
        """Tell other servers where our clients connect, and our clients of theirs."""
        assert self._listener is not None
        listener = self._listener
        cluster.on_urls(listener.set_connect_urls)
        cluster.set_client_urls(addresses.client_urls(self._options, listener.port))
        if self._websocket is not None:
            cluster.on_websocket_urls(self._websocket.set_connect_urls)
            self._share_websocket_urls(cluster, self._options)

    def _share_websocket_urls(self, cluster: ClusterLinks, options: Options) -> None:
        if self._websocket is not None:
            urls = addresses.client_urls(options.for_websocket(), self._websocket.port)
            cluster.set_websocket_urls(urls)

    async def _start_jetstream(self) -> None:
        options, log = self._options, self._log
        js = options.jetstream
        started = time.perf_counter()
        # These rooms are not needed, hence not imported, by a server without streams.
        from streamd.api.router import Router
        from streamd.node.local_node import LocalNode
        from streamd.node.node_options import NodeOptions

        store_dir = js.store_dir
        if not store_dir:
            try:
                store_dir = process_resources.default_store_dir()
            except ConfigError as err:
                raise StartError(f"Can't start JetStream: {err}") from err
        try:
            process_resources.check_files()
        except ConfigError as err:
            raise StartError(f"Can't start JetStream: {err}") from err
        memory_max = js.max_memory if js.max_memory >= 0 else process_resources.memory_share()
        storage_max = (
            js.max_storage if js.max_storage >= 0 else process_resources.storage_share(store_dir)
        )
        log.info("Starting JetStream")
        sync = "always" if js.is_sync_always else js.sync_interval_ns / 1e9
        node_options = NodeOptions(
            store_dir=store_dir,
            server_id=self._server_id,
            server_name=self._server_name,
            sync=sync,
            max_payload=options.max_payload,
            memory_max=memory_max,
            storage_max=storage_max,
            ha_assets_max=js.max_ha_assets,
            unique_tag=js.unique_tag,
            batch_limits=js.batch_limits,
            cluster_name=options.cluster.name if options.is_clustered else "",
            domain=js.domain,
            tags=tuple(options.server_tags),
            accepts_loss=options.accepts_loss,
            open_blocks_max=process_resources.open_blocks_max(),
            files_reserved=process_resources.files_reserved(),
            encryption=_encryption_of(js),
        )
        accounts = self._accounts
        self._node = node = LocalNode(
            node_options,
            accounts.main.router,
            wires_of=accounts.wires,
            log=log,
            on_fatal=self._on_fatal,
        )
        node.hooks.storage_limit = accounts.storage_limit
        if self._cluster is not None and node.is_clustered:
            self._cluster.serve_node(node)
            links = self._cluster
            node.attach_peers(links, links.expected_size, links.unreached)
        try:
            await node.started()
        except (ConfigError, CorruptionError, DiskError, OSError) as err:
            hint = ""
            if isinstance(err, CorruptionError) and not node.is_clustered:
                hint = " (to go on without what is lost: --accept-loss)"
            raise StartError(f"Can't start JetStream: {describe(err)}{hint}") from err
        api = Router(
            node,
            accounts,
            server_version=NATS_LEVEL,
            domain=js.domain,
            asset_limits=js.asset_limits,
        )
        api.announce()

        def join(account: Account) -> None:
            account.router.attach(node.account(account.name))
            api.attach(account.router.subscriptions, account.name)
            if js.domain:
                _serve_domain(js.domain, api, account)

        accounts.on_made(join)
        node.hooks.on_store_gone = self._on_store_gone
        sources = JetStreamSources(node, api)
        self._monitoring.attach(sources)
        if self._dashboard is not None:
            self._dashboard.attach(sources, api)
        self._log_jetstream(store_dir, memory_max, storage_max)
        log.info(f"Took {_took(started)} to start JetStream")

    def _log_jetstream(self, store_dir: str, memory_max: int, storage_max: int) -> None:
        js, log = self._options.jetstream, self._log
        log.info("---------------- JETSTREAM ----------------")
        log.info(f"  Max Memory:      {_amount(memory_max)}")
        log.info(f"  Max Storage:     {_amount(storage_max)}")
        log.info(f'  Store Directory: "{store_dir}"')
        interval = f"every {format_duration(js.sync_interval_ns)}"
        log.info(f"  Fsync:           {'before every ack' if js.is_sync_always else interval}")
        log.info("-------------------------------------------")
        if not js.is_sync_always:
            log.warning(
                "sync_interval is not 'always': a power failure can lose acked messages",
                sync_interval=format_duration(js.sync_interval_ns),
            )

    def _write_ports(self) -> None:
        options = self._options
        assert self._listener is not None
        path = runfiles.ports_path(options.ports_file_dir, self._program)
        services = {"nats": ("nats", options.host, self._listener.port)}
        if self._cluster is not None:
            services["cluster"] = ("nats", options.cluster.host, self._cluster.port)
        if self._websocket is not None:
            scheme, port = self._websocket.scheme, self._websocket.port
            services["websocket"] = (scheme, options.websocket.host, port)
        if self._leaf is not None and options.leaf.is_enabled:
            services["leafnodes"] = ("nats", options.leaf.host, self._leaf.port)
        if self._http is not None:
            services["monitoring"] = (
                "http",
                options.http_host or options.host,
                self._http.port,
            )
        try:
            runfiles.write_ports(path, services)
        except OSError as err:
            reason = (err.strerror or "").lower()
            self._log.error(f"Error writing ports file ({path}): open {path}: {reason}")
            return
        self._ports_file = path

    # --- stop ---------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """Stop the groups, then all that only passes on, and let clients go when all is done: who
        reconnects at once meets a server that has gone, not one that is about to."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if self._draining is not None:
            self._draining.cancel()
        self._log.info("Initiating Shutdown...")
        if self._freed_memory is not None:
            self._freed_memory.stop()
        if self._is_started:
            self._system.shutdown()
        self._monitoring.is_ready = False  # /healthz: whoever spreads clients looks elsewhere
        try:
            async with asyncio.timeout(SHUTDOWN_S):
                stopping = None
                if self._node is not None:
                    stopping = await self._stop_node(self._node)
                if stopping is None:
                    await self._close_links()
                if self._listener is not None:
                    ends_now = self._leave is not None and stopping is None
                    await self._listener.close(leaves_open=ends_now)
                if stopping is not None:
                    await stopping
                    await self._close_links()
        except TimeoutError:
            # All that was acked is in the log; the next start replays what a snapshot would save.
            self._log.warning("shutdown takes too long and is cut short", seconds=SHUTDOWN_S)
            self._remove_files()
            os._exit(self._exit_status)
        self._remove_files()

    async def _stop_node(self, node: LocalNode) -> asyncio.Task[None] | None:
        """Stop it. While it gives its leaderships away, clients are served, new ones too. What
        follows takes a moment: if it is longer (last snapshots), they are not to wait for it, and
        it is returned."""
        groups_left = asyncio.Event()
        stopping = self._tasks.create_task(node.stopped(groups_left.set), name="stop-node")
        await groups_left.wait()
        await asyncio.wait((stopping,), timeout=UNSERVED_AT_STOP_S)
        return None if stopping.done() else stopping

    async def _close_links(self) -> None:
        """Close what other servers and monitors are connected to."""
        async with asyncio.TaskGroup() as closing:
            if self._cluster is not None:
                closing.create_task(self._cluster.close(), name="close-cluster")
            if self._leaf is not None:
                closing.create_task(self._leaf.close(), name="close-leaf")
            closing.create_task(self._logins.close(), name="close-logins")
            if self._dashboard is not None:
                self._dashboard.close()
            if self._http is not None:
                closing.create_task(self._http.close(), name="close-http")

    def _start_trimming(self) -> None:
        """Give back what the start freed, and what a burst does."""
        trim = find_trim()
        if trim is not None:
            self._freed_memory = FreedMemory(
                asyncio.get_running_loop().call_later,
                cpu_s=time.process_time,
                resident_bytes=resident_bytes,
                trim=trim,
            )
            self._freed_memory.start()

    def _remove_files(self) -> None:
        if self._ports_file:
            runfiles.remove(self._ports_file)
        if self._options.pid_file:
            runfiles.remove_pid(self._options.pid_file)

    def _on_store_gone(self) -> None:
        """Send clients of a cluster elsewhere, for nothing is stored here any more; a single server
        stays, to say why: started anew it would be an empty one."""
        self._exit_status = 1
        if self._options.is_clustered:
            self._lame_duck()

    def _on_fatal(self, err: BaseException) -> None:
        """The log of all groups failed: nothing can be promised any more."""
        self._log.fatal(f"JetStream stopped: {describe(err)}")
        self._exit_status = 1
        self._stop_wanted.set()

    # --- signals ------------------------------------------------------------------------------

    def _install_signals(self) -> None:
        loop = asyncio.get_running_loop()
        actions = {
            signal.SIGINT: self._stop_wanted.set,
            signal.SIGTERM: self._stop_wanted.set,
            signal.SIGQUIT: self._stop_wanted.set,
            signal.SIGHUP: self._reload,
            signal.SIGUSR1: self._reopen_log,
            signal.SIGUSR2: self._lame_duck,
        }
        for number, action in actions.items():
            loop.add_signal_handler(number, self._trapped, number, action)

    def _trapped(self, number: signal.Signals, action: Callable[[], object]) -> None:
        self._log.info(f'Trapped "{_SIGNAL_WORDS[number]}" signal')
        if action == self._stop_wanted.set and (self._is_stopping or not self._is_started):
            # Asked twice, or while recovering: at once. Acked data is in the log, and a recovery
            # may be broken off anywhere.
            self._remove_files()
            self._log.info("Server Exiting..")
            os._exit(self._exit_status)
        if number == signal.SIGTERM and self._draining is not None:
            return  # as in nats-server: it stops when its clients are gone; SIGINT does not wait
        if self._is_started or action == self._reopen_log:
            action()
        else:
            self._postponed.append(action)

    def _ignore_signals(self) -> None:
        """Ignore signals from here on: only the interpreter's own end is left, and a signal would
        be shown as its cause."""
        loop = asyncio.get_running_loop()
        for number in _SIGNAL_WORDS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)

    def _reopen_log(self) -> None:
        if not self._options.log_file:
            self._log.info("File log re-open ignored, not a file logger")
            return
        try:
            self._log.reopen()
        except OSError as err:
            self._log.error("can't re-open the log file", reason=err.strerror)
            return
        self._log.info("File log re-opened")

    def _reload(self) -> str:
        """Read the configuration again and apply what can change while serving. Returns why that
        failed; "": it did not."""
        if not self._options.config_file:
            reason = "can only reload config when a file is provided using -c or --config"
            self._log.error(f"Failed to reload server configuration: {reason}")
            return reason
        try:
            fresh = flags.options_from(self._line)
            certificate_files.check(fresh)
            changes.refuse_fixed(self._options, fresh)
            if self._cluster is not None and self._cluster.tls is not None:
                self._cluster.tls.read_anew()
            self._log.change(**fresh.log_settings)
            if self._http_tls is not None:
                self._http_tls.renew(_of_monitoring(fresh))
            assert self._listener is not None
            self._change_accounts(fresh)
            self._logins.reload(fresh)
            self._listener.reload(fresh)
            self._accounts.counts.limits_changed()
            if self._leaf is not None:
                self._leaf.reload(fresh)
        except (ConfigError, OSError) as err:
            self._change_accounts(self._options)
            self._logins.reload(self._options)
            self._log.error(f"Failed to reload server configuration: {err}")
            return str(err)
        for warning in fresh.warnings:
            self._log.warning(warning)
        if self._cluster is not None and fresh.cluster != self._options.cluster:
            self._cluster.change_routes(fresh.cluster)
        for change in changes.describe(self._options, fresh):
            self._log.info(f"Reloaded: {change}")
        before, self._options = self._options, fresh
        self._move_files(before)
        if self._leaf is None and fresh.leaf.remotes:  # the first ones; there is no listener
            self._tasks.create_task(self._start_leaf(), name="leaf nodes")
        self._monitoring.reloaded(fresh)
        if self._dashboard is not None:
            self._dashboard.reloaded(fresh)
        self._system.reloaded(fresh)
        if self._cluster is not None and self._draining is None:
            self._cluster.set_client_urls(addresses.client_urls(fresh, self._listener.port))
            self._share_websocket_urls(self._cluster, fresh)
        self._log.info(f"Reloaded server configuration ({fresh.config_digest})")
        return ""

    def _move_files(self, before: Options) -> None:
        """Write the files by which others find this server where the configuration says now."""
        options = self._options
        try:
            if options.pid_file != before.pid_file:
                runfiles.remove_pid(before.pid_file)
                if options.pid_file:
                    runfiles.write_pid(options.pid_file)
            if options.ports_file_dir != before.ports_file_dir:
                if self._ports_file:
                    runfiles.remove(self._ports_file)
                    self._ports_file = ""
                if options.ports_file_dir:
                    self._write_ports()
        except OSError as err:
            self._log.error(f"can't write {err.filename}: {err.strerror}")

    def _change_accounts(self, options: Options) -> None:
        self._accounts.change(options.accounts)
        self._link_accounts()

    def _lame_duck(self) -> None:
        """No new clients; those here are told, sent away one by one, and then the server stops."""
        if self._draining is not None or self._listener is None:
            return
        self._log.info("Entering lame duck mode, stop accepting new clients")
        self._system.lame_duck()
        self._monitoring.is_ready = False  # /healthz: whoever spreads clients looks elsewhere
        self._draining = self._tasks.create_task(self._drain(self._listener), name="lame-duck")
        if self._cluster is not None:
            # Clients are told of the others only.
            self._cluster.set_client_urls([])
            self._cluster.set_websocket_urls([])

    async def _drain(self, listener: Listener) -> None:
        await listener.lame_duck()
        self._stop_wanted.set()


def _of_monitoring(options: Options) -> TlsOptions:
    """Return the TLS of monitoring: the server's certificates, and none is asked for."""
    assert options.tls is not None
    return replace(options.tls, is_verifying=False, is_mapping=False)


def _encryption_of(js: JetStreamOptions) -> EncryptionKeys | None:
    """Return the keys that files are encrypted with; None: they are not."""
    return EncryptionKeys(js.cipher, js.key, js.previous_key) if js.key else None


def _serve_domain(domain: str, api: Any, account: Account) -> None:
    """Answer `$JS.<domain>.API.>` as well: what clients use that name the domain."""

    def handle(subject: bytes, reply: bytes, headers: bytes, payload: bytes, conn: Any) -> None:
        subject = account.router.without_domain(subject)
        if subject.startswith(b"$JS.API."):
            api.handle(subject, reply, headers, payload, conn, account.name)
        else:
            account.router.publish(subject, reply, headers, payload)

    account.router.subscriptions.subscribe_internal(b"$JS.%b.API.>" % domain.encode(), handle)


def _default_name(options: Options) -> str:
    """A name that stays the same over restarts on the same data."""
    if options.jetstream.is_enabled:
        place = os.path.abspath(options.jetstream.store_dir or "streamd")
        seed = f"{socket.gethostname()}|{place}"
    else:
        seed = secrets.token_hex(8)
    return "streamd-" + hashlib.sha256(seed.encode()).hexdigest()[:8]


def _amount(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.2f} {unit}" if unit != "B" else f"{size} B"
        amount /= 1024
    return f"{amount:.2f} TB"


def _took(start: float) -> str:
    """The time since `start` (of time.perf_counter), as Go prints it."""
    return format_duration(round((time.perf_counter() - start) * 1e6) * 1000)
