"""streameval: evaluation that runs while a recommender serves.

Packages from the lowest layer up; each imports only layers below its own (import-linter holds it):

1. `base`: errors, bounds, durations, waiting. `stats`: intervals and tests, as functions of sums.
2. `core`: the meaning of every figure, without I/O. Begin with `core.definition`, `core.events` and
   `core.partition`; then `core.attribution` and `core.windows`. `core.metrics.discounted_gain` is a
   family of metrics, whole, in one file. `core.oracle` and `tests/oracle` have the same figures by
   sort and scan: the shorter text where a rule is unclear.
3. `config`: every key of the configuration.
4. `kafka`, `store` (Redis; `commit.lua` is where exactly once is decided), `web` (the pages).
5. `files`: outcome files and snapshots.
6. `checks` of them, `evaluation` for figures of files, `backfill` for past figures of the stream.
7. `worker`: the running service; `worker.worker_loop` has its numbered steps. `demo` runs it all.
8. `cli`: the commands. `notebook`: the same in Python, of frames; its functions are the public ones
   here.

docs/architecture.md has a drawing and the reasons.
"""

# Type checkers know this name. `typing` would be imported before the program takes signals.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from streameval.base.errors import StreamevalError
    from streameval.notebook.functions import compare, evaluate, outcomes, replay

__version__ = "0.1.0"
__all__ = ["StreamevalError", "__version__", "compare", "evaluate", "outcomes", "replay"]


def __getattr__(name: str) -> object:
    """Import a public name when it is used: a worker and `--version` need none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = "base.errors" if name == "StreamevalError" else "notebook.functions"
    public: object = getattr(import_module(f"{__name__}.{home}"), name)
    return public


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
