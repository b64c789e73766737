"""`Account`: one subject space, the options that hold for it, and its clients."""

from __future__ import annotations

import time

from streamd.config.account_options import AccountLimits, AccountOptions
from streamd.net.pubsub.message_router import MessageRouter


class Account:
    """An account of this server. The object stays the same while its options change."""

    def __init__(self, options: AccountOptions, router: MessageRouter, *, is_known: bool) -> None:
        """`is_known`: it is configured here, or its token was seen; else another node named it."""
        self.name = options.name
        self.options = options
        self.router = router
        self.is_known = is_known
        self.cids: set[int] = set()  # of the clients that are in it
        self.updated_ns = time.time_ns()  # when it got these options
        router.traced.sampling = options.trace

    @property
    def limits(self) -> AccountLimits:
        """Limits of its clients."""
        return self.options.limits

    def change(self, options: AccountOptions, *, is_known: bool = True) -> None:
        """Use other options from here on."""
        if options != self.options or is_known != self.is_known:
            self.options = options
            self.is_known = is_known
            self.updated_ns = time.time_ns()
            self.router.traced.sampling = options.trace
