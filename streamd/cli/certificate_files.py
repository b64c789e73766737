"""Check of the files that a configuration names for TLS, before anything is started or changed."""

from __future__ import annotations

from streamd.config.options import Options


def check(options: Options) -> None:
    """Raise ConfigError, which names the place of the block, if its files can't be used."""
    if options.tls is None:
        return
    # OpenSSL and certificates cost a tenth of a second, which a server in clear saves.
    from streamd.net.tls.context import server_context

    server_context(options.tls)
