"""Certificates of files for TLS: who is trusted, and who we are."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

NO_CERTIFICATES: Final = "no certificates in PEM, or a key with a password"
"""What is said of files that cannot be read."""


def read_certificates(
    context: ssl.SSLContext, ca_file: Path | None, cert_file: Path | None, key_file: Path | None
) -> None:
    """Read files (PEM) into a context; without `ca_file` it trusts what the system does.

    Raises OSError, of which `ssl.SSLError` is one.
    """
    if ca_file is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(ca_file)
    if cert_file is not None:
        context.load_cert_chain(cert_file, key_file, password="")  # no terminal is asked for one
