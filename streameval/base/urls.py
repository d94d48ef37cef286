"""Split a URL that may name several hosts.

`urllib.parse.urlsplit` refuses `a:1,[::1]:3` from Python 3.14 on, and in later releases of the
versions before.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult

# The expression of RFC 3986, appendix B.
_URL = re.compile(r"(?:([^:/?#]+):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.DOTALL)


def split_url(text: str) -> SplitResult:
    """Return the parts of a URL; its `hostname` and `port` are of use for one host only."""
    scheme, *rest = _URL.fullmatch(text).groups(default="")  # type: ignore[union-attr]
    return SplitResult(scheme.lower(), *rest)
