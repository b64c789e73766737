"""`StoreOpening`: opens a node's directory and its log, and makes the context of all its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from streamd.errors import DiskError
from streamd.node.context import NodeContext, NodeHooks, NodeLife, NodeLog
from streamd.node.env import NodeEnv, NodeThread, StoreEnv
from streamd.node.identity import ownership, store_directory
from streamd.node.identity.incarnations import Incarnations
from streamd.node.identity.node_identity import NodeIdentity
from streamd.node.integrity.damage_log import DamageLog
from streamd.node.node_options import NodeOptions
from streamd.node.recovery import quorum_loss_recovery
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.resources.disk_quota import MemoryQuota, Quotas, StorageQuota
from streamd.node.timers import Timers
from streamd.store.disk import disk_error
from streamd.store.frames.encryption import StoreEncryption


class OpenedStore(NamedTuple):
    """Log and identity that are this node's now, and what was found of them."""

    context: NodeContext
    log_thread: NodeThread
    quotas: Quotas
    incarnations: Incarnations
    damage_log: DamageLog
    is_log_lost: bool
    is_loss_resumed: bool


class StoreOpening:
    """Opening at one start."""

    def __init__(
        self,
        options: NodeOptions,
        env: NodeEnv,
        groups: LocalGroups,
        log: NodeLog,
        life: NodeLife,
        hooks: NodeHooks,
    ) -> None:
        self._options = options
        self._env = env
        self._groups = groups
        self._log = log
        self._life = life
        self._hooks = hooks
        self.lock = -1  # of the directory; a start that fails keeps it until its process ends

    def open(
        self, *, on_log_error: Callable[[Exception], None], on_put_back: Callable[[DiskError], None]
    ) -> OpenedStore:
        """Open all. Raises ConfigError, CorruptionError, DiskError.

        `on_log_error`: the log failed later. `on_put_back`: a peer says that the directory is an
        older copy.
        """
        options, disk, log = self._options, self._env.disk, self._log
        disk.reserve_files(options.files_reserved)
        damage_log = DamageLog(log)
        root, name = store_directory.root_of(options.store_dir), options.server_name
        encryption = StoreEncryption(disk, root, options.encryption)
        self._check(encryption, root)
        opened = self._directory(damage_log)
        self.lock = opened.lock
        try:
            framed = encryption.begin(self._log.info)
        except OSError as err:
            raise disk_error("encrypting the store", root, err) from err
        identity = NodeIdentity(root, disk, opened.identity)
        loss = quorum_loss_recovery.Resumption(accepts_loss=False, is_resumed=False)
        if options.is_clustered:
            ownership.check_name(identity, name, root)
        else:
            loss = quorum_loss_recovery.resume(identity, log, accepts_loss=options.accepts_loss)
        quotas = self._quotas(root)
        log_thread = self._env.make_thread("log")
        block_thread = self._env.make_thread("block")
        incarnations = Incarnations(name, identity, disk, log, on_put_back)
        # Without a key the log's own disk is the system's: its writes are not looked at here.
        log_disk = framed.as_disk() if framed.is_encrypted else disk
        owner = ownership.LogOwner(options, root, log_disk, identity, incarnations, damage_log, log)
        wal = owner.open(
            log_thread,
            block_thread,
            on_log_error,
            segment_bytes=quotas.storage.segment_bytes,
            accepts_loss=loss.accepts_loss,
        )
        context = NodeContext(
            name=name,
            root=root,
            options=options,
            env=StoreEnv(self._env, framed.as_disk()),
            wal=wal,
            block_thread=block_thread,
            identity=identity,
            log=log,
            timers=Timers(self._env.loop),
            life=self._life,
            hooks=self._hooks,
            is_clustered=options.is_clustered,
            accepts_loss=loss.accepts_loss,
            accepts_doubt=options.accepts_loss and options.is_clustered,
        )
        return OpenedStore(
            context,
            log_thread,
            quotas,
            incarnations,
            damage_log,
            owner.is_lost,
            loss.is_resumed,
        )

    @staticmethod
    def _check(encryption: StoreEncryption, root: str) -> None:
        """Refuse a directory that the configured key does not open, before anything is touched."""
        try:
            encryption.check()
        except NotADirectoryError:
            return  # what prepares the directory says so
        except OSError as err:
            raise disk_error("reading encryption.json", root, err) from err

    def _directory(self, damage_log: DamageLog) -> store_directory.StoreDir:
        options = self._options
        when_unknown = store_directory.WhenUnknown.REFUSE
        if options.is_clustered:
            when_unknown = store_directory.WhenUnknown.BEGIN_ANEW
        elif options.accepts_loss:
            when_unknown = store_directory.WhenUnknown.KEEP
        opened = store_directory.prepare(
            options.store_dir, self._env.disk, when_unknown=when_unknown
        )
        for path in opened.foreign:
            self._log.warn("an unknown file in the store directory is left alone", path=path)
        for text in opened.faults:
            damage_log.found_at_start(text)
        return opened

    def _quotas(self, root: str) -> Quotas:
        options, groups = self._options, self._groups
        storage = StorageQuota(
            self._env.disk,
            root,
            storage_max=options.storage_max,
            used=lambda: groups.stored_bytes(is_file=True),
            unwritten=groups.unwritten_bytes,
        )
        memory = MemoryQuota(
            memory_max=options.memory_max, used=lambda: groups.stored_bytes(is_file=False)
        )
        return Quotas(storage, memory)
