"""Values of keys that name a place: servers, URLs, files and folders.

Each function returns the value, and raises ValueError with what to write.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from pydantic import SecretStr

from streameval.base.paths import is_file
from streameval.base.urls import split_url

# The options that a URL of Redis may carry; files are PEM.
_TLS: Final[dict[str, set[str] | None]] = {
    "ssl_ca_certs": None,
    "ssl_certfile": None,
    "ssl_keyfile": None,
    "ssl_cert_reqs": {"required", "none"},
    "ssl_check_hostname": {"true", "false"},
}
"""Each option of a Redis URL and its values; None stands for a file."""
_SENTINEL: Final[dict[str, set[str] | None]] = {
    "sentinel_username": set(),
    "sentinel_password": set(),
}
"""The login of the Sentinels themselves, of any value."""
_PATHS: Final = {
    "": (r"/?|/[0-9]{1,9}", "the database is a number: write redis://HOST:PORT/0"),
    "cluster": (r"/?|/0", "a cluster has no databases: write redis+cluster://HOST:PORT"),
    "sentinel": (
        r"/[A-Za-z0-9._-]+(/[0-9]{0,9})?",
        "name the master that the Sentinels watch: redis+sentinel://HOST:PORT/NAME/0",
    ),
}
"""By the kind of servers: the path of a Redis URL, and what to write."""


def name(value: str) -> str:
    """Return a name of a topic or group."""
    # Kafka's rule for topics; groups share it, because both are part of Redis' keys.
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", value) or value in {".", ".."}:
        raise ValueError(f"write 1 to 249 of the characters A-Z a-z 0-9 . _ - , not {value!r}")
    return value


def servers(value: str) -> str:
    """Return bootstrap servers, `host:port` each."""
    for server in value.split(","):
        address(server.strip())
    return value


def address(value: str) -> str:
    """Return `host:port`."""
    host, _, port = value.rpartition(":")
    good = port.isascii() and port.isdigit() and int(port) <= 65_535
    if not re.fullmatch(r"[^\s/,;]+", host) or not good:
        raise ValueError(f"write host:port{_like(value)}, not {value!r}")
    return value


def web_address(value: str) -> str:
    """Return an address of the web without a slash at its end."""
    url = urlsplit(value)
    if "@" in url.netloc:  # no message quotes a password
        raise ValueError("write the address without a user and a password: they have keys")
    if url.scheme not in {"http", "https"} or not url.hostname or url.query or url.fragment:
        raise ValueError(f"write http://… or https://…, not {value!r}")
    return value.rstrip("/")


def web_addresses(value: str) -> str:
    """Return addresses of the web, with commas between them."""
    return ",".join(web_address(each.strip()) for each in value.split(","))


def _like(value: str) -> str:
    """Suggest the intended address, if the value contains one."""
    if re.search(r"\d[\s;]+\w", value):
        return ", with a comma between several"
    meant = re.fullmatch(r"\w+://([\w.-]+:\d{1,5})/?", value, re.ASCII)
    return f", like {meant[1]}" if meant else ""


def port_alone(value: object) -> object:
    """Refuse a port without a host: which interface it opens is for a person to decide."""
    text = str(value)
    if isinstance(value, int | str) and text.isascii() and text.isdecimal():
        raise ValueError(
            f"write host:port: 127.0.0.1:{text} for this machine, 0.0.0.0:{text} for all"
        )
    return value


def redis_url(value: SecretStr) -> SecretStr:
    """Return a URL of one Redis, of Sentinels or of a cluster."""
    # No message quotes any part of the URL: a misplaced part may be the password.
    try:
        url = split_url(value.get_secret_value())
        options = parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query))
        places = [urlsplit(f"//{each}") for each in url.netloc.rpartition("@")[2].split(",")]
        good = all(each.hostname and each.port != 0 for each in places) and not url.fragment
    except ValueError:
        good = False
    scheme, _, kind = url.scheme.partition("+") if good else ("", "", "")
    if scheme not in {"redis", "rediss"} or kind not in _PATHS or (len(places) > 1 and not kind):
        raise ValueError(
            "write redis://HOST:PORT/DATABASE, or rediss:// for TLS;"
            " redis+cluster://HOST:PORT,HOST:PORT; redis+sentinel://HOST:PORT,HOST:PORT/NAME"
        )
    pattern, cure = _PATHS[kind]
    if not re.fullmatch(pattern, url.path):
        raise ValueError(cure)
    names = [name for name, _ in options]
    known = (_TLS if scheme == "rediss" else {}) | (_SENTINEL if kind == "sentinel" else {})
    if not known.keys() >= set(names):
        raise ValueError(
            f"only rediss:// has options, and only these: {', '.join(_TLS)}; Sentinels also have"
            f" {' and '.join(_SENTINEL)}"
        )
    if len(names) > len(set(names)):
        raise ValueError(f"{', '.join(names)}: write each once")
    for name, given in options:
        values = known[name]
        if values is None and not _is_file(Path(given)):
            raise ValueError(f"{name}: write a file that exists")
        if values and given not in values:
            raise ValueError(f"{name}: write {' or '.join(sorted(values))}")
    return value


def _is_file(value: Path) -> bool:
    try:
        return is_file(value)
    except OSError as error:
        raise ValueError(f"{str(value)!r} cannot be used: {error.strerror}") from None


def file(value: Path) -> Path:
    """Return the path of a file that exists."""
    if not _is_file(value):
        raise ValueError(f"no such file: {str(value)!r}")
    return value


def folder(value: Path) -> Path:
    """Return the path of a folder, which may not exist yet."""
    if not str(value).strip(".") or _is_file(value):
        raise ValueError(f"write a folder, not {str(value)!r}")
    return value


def on_disk(value: object) -> object:
    """Return what is no URI."""
    if isinstance(value, str) and "://" in value:
        raise ValueError("snapshots go to a folder that all workers share, not to a URI")
    return value
