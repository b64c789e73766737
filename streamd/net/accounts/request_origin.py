"""Origin of a message that comes from another account by an import."""

from __future__ import annotations

from streamd.api.remote_client import ClientFacts


class RequestOrigin:
    """Client behind a request, or behind a response, in another account.

    It stands for the client where a subscription of the server itself takes the message, as the API
    of the exporting account does: with the client's facts, and without any right to administer.
    """

    __slots__ = ("account", "is_response", "is_shared", "path", "requester")

    def __init__(
        self,
        requester: ClientFacts | None,
        account: str,
        *,
        is_shared: bool = False,
        is_response: bool = False,
        path: tuple[object, ...] = (),
    ) -> None:
        """`requester` None: the server, or a client of another node. `account` is the client's;
        `path`: the imports that the request came through."""
        self.requester = requester
        self.account = account
        self.is_shared = is_shared
        self.is_response = is_response
        self.path = path

    def through(self, link: object) -> RequestOrigin:
        """Return the origin of the same request behind one more import."""
        return RequestOrigin(
            self.requester, self.account, is_shared=self.is_shared, path=(*self.path, link)
        )

    @property
    def cid(self) -> int:
        return self.requester.cid if self.requester is not None else 0

    @property
    def ip(self) -> str:
        return self.requester.ip if self.requester is not None else ""

    @property
    def start_ns(self) -> int:
        return self.requester.start_ns if self.requester is not None else 0

    @property
    def rtt_ns(self) -> int:
        return self.requester.rtt_ns if self.requester is not None else 0

    @property
    def user(self) -> str:
        return self.requester.user if self.requester is not None else ""

    @property
    def name(self) -> str:
        return self.requester.name if self.requester is not None else ""

    @property
    def lang(self) -> str:
        return self.requester.lang if self.requester is not None else ""

    @property
    def version(self) -> str:
        return self.requester.version if self.requester is not None else ""

    def may_administer(self, subject: bytes) -> bool:
        """Return False: only clients of an account itself may."""
        return False

    def forbid_publish(self, subject: bytes) -> None:
        """Ignore it: the client did not publish to `subject`."""
