"""Check of the files that a configuration names for TLS, before anything is started or changed."""

from __future__ import annotations

from streamd.config.options import Options


def check(options: Options) -> None:
    """Raise ConfigError, which names the place of the block, if its files can't be used."""
    of_cluster = options.cluster.tls
    blocks = [tls for tls in (options.tls, options.websocket.tls, of_cluster) if tls is not None]
    if not blocks:
        return
    # OpenSSL and certificates cost a tenth of a second, which a server in clear saves.
    from streamd.net.tls.ssl_contexts import client_context, server_context

    for tls in blocks:
        server_context(tls)
    if of_cluster is not None:
        client_context(of_cluster)
