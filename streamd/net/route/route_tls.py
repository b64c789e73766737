"""Certificates of the links between servers."""

from __future__ import annotations

import ssl

from streamd.config.cluster_options import ClusterTls
from streamd.errors import ConfigError


class PeerTls:
    """TLS contexts of the links: `server` for those that others dial, who must show a
    certificate, `client` for those that this server dials. The constructor raises ConfigError."""

    def __init__(self, tls: ClusterTls) -> None:
        self._tls = tls
        self.server, self.client = _contexts(tls)

    def read_anew(self) -> None:
        """Read the files again, for links to come; those that are up stay as they are. Raises
        ConfigError, and then nothing changes."""
        tls = self._tls
        _contexts(tls)  # a key that does not fit its certificate would spoil those in use
        for context in (self.server, self.client):
            context.load_cert_chain(tls.cert_file, tls.key_file)
            if tls.ca_file:
                context.load_verify_locations(tls.ca_file)


def _contexts(tls: ClusterTls) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    try:
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.ca_file or None)
        client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=tls.ca_file or None)
        for context in (server, client):
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as err:
        files = ", ".join(filter(None, (tls.cert_file, tls.key_file, tls.ca_file)))
        raise ConfigError(f"cluster tls: {err.strerror or err} ({files})") from err
    server.verify_mode = ssl.CERT_REQUIRED
    if tls.is_insecure:
        client.check_hostname = False
        client.verify_mode = ssl.CERT_NONE
    return server, client
