"""`NodeIdentity`: the content of `node.json`, in memory and on disk.

`store_directory.StoreDir` says what each fact means. Parts of the node change `facts` and save.
"""

from __future__ import annotations

from collections.abc import Callable

from streamd.node.identity import store_directory
from streamd.store.disk import Disk
from streamd.store.node_file import Identity
from streamd.types import Index, NodeId


class NodeIdentity:
    """Holds the facts by which the next start knows this node's data."""

    def __init__(self, root: str, disk: Disk, facts: Identity) -> None:
        self.facts = facts
        self._root = root
        self._disk = disk
        # Set while the node runs: a fact that can't be saved is the end of the node.
        self.on_failed: Callable[[OSError], None] | None = None

    def write(self) -> None:
        """Make the facts what the next start finds. Raises OSError."""
        store_directory.save_identity(self._root, self._disk, self.facts)

    def save(self) -> bool:
        """Make the facts what the next start finds; False: that failed, and the node is at its
        end. Raises OSError if the node does not run yet."""
        try:
            self.write()
        except OSError as err:
            if self.on_failed is None:
                raise
            self.on_failed(err)
            return False
        return True

    @property
    def cluster_id(self) -> str:
        """The id of the node's cluster; empty until it belongs to one."""
        return str(self.facts.get("cluster_id", ""))

    @property
    def voters(self) -> tuple[NodeId, ...]:
        """The members of the cluster when this node joined it."""
        return tuple(self.facts.get("voters", ()))

    @property
    def is_rejoined(self) -> bool:
        """True until the meta group has vouched for a node that lost its log, or joined."""
        return bool(self.facts.get("is_rejoined"))

    @property
    def removal(self) -> Index:
        """The last meta entry whose removal of this server's name was before this data began."""
        return int(self.facts.get("removal", 0))

    def note_groups_lost(self) -> None:
        """Record that the log may have lost all of a group, votes too, as if it were lost."""
        self.facts["is_rejoined"] = True
        self.save()

    def certify(self, index: Index) -> None:
        """Record that a meta leader vouched for this member with entry `index` or an earlier one,
        which it appended after this node had joined. The caller saves."""
        self.facts["is_rejoined"] = False
        if self.facts.pop("is_new", False):
            self.facts["removal"] = max(self.removal, index)
        self.facts["forgotten_upto"] = index
