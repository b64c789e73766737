"""Events of traced messages: documents to the destination that a message or its account named."""

from __future__ import annotations

from collections.abc import Callable

from streamd.net.monitoring.sliced_pages import encode
from streamd.net.pubsub.message_router import MessageRouter
from streamd.net.pubsub.message_trace import MessageTrace
from streamd.net.system.compression import compressor, encoding_of
from streamd.net.system.server_description import ServerDescription


class TraceEvents:
    """Sends the documents of this server's traces."""

    def __init__(
        self, description: ServerDescription, router_of: Callable[[str], MessageRouter]
    ) -> None:
        """`router_of`: the subject space of an account."""
        self._description = description
        self._router_of = router_of

    def send(self, trace: MessageTrace) -> None:
        """Publish the document of a trace, compressed if the message accepts that."""
        document = {"server": self._description.next(), **trace.document()}
        body = "".join(encode(document, "")).encode(errors="replace")
        encoding = encoding_of(trace.encoding)
        headers = b""
        if encoding:
            headers = b"NATS/1.0\r\nContent-Encoding: %b\r\n\r\n" % encoding.encode()
            stream = compressor(encoding)
            if stream is not None:
                body = stream.compress(body) + stream.flush()
        self._router_of(trace.account).publish(trace.destination, b"", headers, body)
