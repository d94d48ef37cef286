"""A read-only server of the Model Context Protocol over the API of a worker, for `streameval mcp`.

Agents are asked "is B better?"; the tools give them the figures of the page. Nothing can be
changed, and no user can be asked for.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, Final, Literal

from streameval import __version__
from streameval.base.errors import InputError, StreamevalError, UnreachableError
from streameval.core.figures import SECTIONS
from streameval.web.openapi import PREFIX

if TYPE_CHECKING:
    from mcp.server import MCPServer

    Section = str
else:
    Section = Literal[SECTIONS]  # agents are told the names

# A worker that computes figures of many segments answers within seconds.
ANSWER_SECONDS: Final = 30.0

Basis = Literal["live", "matured", "nowcast"]

INSTRUCTIONS: Final = """\
Figures of a recommender while it serves. To tell whether a variant is better, read the
experiments: their bounds hold however often you look, and their sentences say what is decided. Do
not compare two rows of figures by eye. Matured figures can no longer change; live ones are low
while feedback comes in.
"""


def server(url: str) -> MCPServer:
    """Make the server over the worker at `url`."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations

    made = MCPServer("streameval", version=__version__, instructions=INSTRUCTIONS)
    worker = Worker(url)

    async def asked(path: str, **parameters: str) -> dict[str, Any]:
        try:
            return await worker.get(path, **parameters)
        except StreamevalError as error:
            raise ToolError(str(error)) from error

    tool = made.tool(annotations=ToolAnnotations(read_only_hint=True))

    @tool
    async def figures(
        window: str | None = None, basis: Basis = "matured", section: Section = "rates"
    ) -> dict[str, Any]:
        """Return the rows of one section of figures, of all windows unless one is named.

        rates: positives per impression and user; ranking: NDCG, precision and others at k; values:
        revenue or watch time; lists: empty, short and abandoned slates, latency; ranks: impressions
        and positives by rank. `_stderr` is one standard error, `_low` and `_high` are the ends of a
        95 % interval for one look.
        """
        wanted = {} if window is None else {"window": window}
        found = await asked("/figures", basis=basis, section=section, **wanted)
        kept = ("at", "partitions", "workers", section)
        return {name: found[name] for name in kept}

    @tool
    async def experiments() -> dict[str, Any]:
        """Return the scorecard of each experiment: sentences, warnings, differences with bounds."""
        return await asked("/experiments")

    @tool
    async def experiment(name: str, history_of: str | None = None) -> dict[str, Any]:
        """Return the scorecard of one experiment, with the bounds of `history_of` over time."""
        wanted = {} if history_of is None else {"metric": history_of}
        found = await asked(f"/experiments/{urllib.parse.quote(name, safe='')}", **wanted)
        if history_of is None:
            del found["history"]
        return found

    @tool
    async def checks() -> dict[str, Any]:
        """Return how the last checks of the data ended, with advice where one failed."""
        return await asked("/checks")

    @tool
    async def health() -> dict[str, Any]:
        """Return how the workers and partitions are doing: lag, age, and why they are not ready."""
        return await asked("/health")

    return made


class Worker:
    """The API of a worker at `url`."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise InputError(
                f"--url {url}: write http://HOST:PORT, the address of a worker's pages"
            )
        self._url = url.rstrip("/")

    async def get(self, path: str, **parameters: str) -> dict[str, Any]:
        """Return a document of the API. Raises `StreamevalError` with one line."""
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        return await asyncio.to_thread(self._get, f"{self._url}{PREFIX}{path}{query}")

    def _get(self, url: str) -> dict[str, Any]:
        try:
            # `__init__` has looked at the scheme.
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as response:  # noqa: S310
                found: dict[str, Any] = json.load(response)
                return found
        except urllib.error.HTTPError as error:
            with error:
                raise InputError(_error_line(error)) from error
        except (OSError, ValueError) as error:
            raise UnreachableError(
                f"the worker at {self._url} does not answer ({error}): is it running, and is --url"
                " the address of its pages?"
            ) from error


def _error_line(error: urllib.error.HTTPError) -> str:
    """Return the line of an error of the API, or the answer of a proxy before it."""
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"{error.url} answers {error.code} {error.reason}"
