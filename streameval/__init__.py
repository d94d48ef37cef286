"""streameval: evaluation that runs while a recommender serves.

Where to begin reading. What every figure means is decided in `core`, which is pure:

1. `core.definition`, `core.events`: what is configured, and what comes in.
2. `core.partition`: the data's way through the core, in its docstring; then `core.attribution` (who
   gets the credit) and `core.windows.panes` (panes, live and matured).
3. `core.metrics.ndcg`: a metric, whole, in one file; its siblings are like it.
4. `core.oracle.figures`: the same figures by sort and scan: the shorter text where a rule is unclear.
5. `core.checkpoint`: how the state is written and restored.

Then the service that runs it, in `stream`:

6. `worker.worker_loop`: the numbered steps from records to commits; `worker.assigned_partition`: one partition of it.
7. `store.redis_store` with `commit.lua`: exactly once, and every key in Redis.
8. `kafka.consumer`: Kafka. `worker.app`: the worker process, the only file that knows Faust.
9. `web.status`, then `web.exposition` and `web.overview`: what the pages show.

`cli` lists the commands, `settings` every key of the configuration. Data flows down this list,
imports point up it. docs/architecture.md has a drawing and the reasons.
"""

__version__ = "0.1.0"
