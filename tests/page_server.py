"""The live page over the figures of a replay: its real routes, and an API that serves documents.

Figures and scorecards are those of `replay` on made-up traffic of two variants, so they are as the
service writes them. The history, the state of the group and the checks are made up.
"""

import asyncio
import contextlib
import functools
import json
import random
import time

import aiohttp.web
import yaml

from streameval.config.load import load
from streameval.core.replay import replay
from streameval.experiments.scorecard import sections
from streameval.experiments.words import document_of, scorecards
from streameval.web.intervals import with_intervals
from streameval.web.pages import Pages
from streameval.web.status import PartitionStatus, ProcessCounters, ServiceStatus

START = 1_767_600_000_000
HOURS = 3
TOKEN = "a-token"
NONE_REJECTED = {"records": 9_000, "reasons": {}, "is_much": False, "message": None, "latest": None}
SETTINGS = {
    "positives": ["click", {"kind": "watch", "threshold": 0.5, "value": "sum"}],
    "ks": [5, 10],
    "windows": [{"size": "1h", "slide": "1m"}, {"size": "24h", "slide": "5m"}],
    "experiments": [
        {
            "name": "ranker-v2",
            "arm": "variant",
            "planned_users": 2_000,
            "primary": "positives_per_impression{feedback=click}",
            "guardrails": ["ndcg@10", "empty_rate", "latency_ms_mean"],
        }
    ],
}


def traffic(control, treatment, users, clicks):
    """Events of users in two arms; the treatment gets more clicks, `clicks` times as many."""
    chance = random.Random(7)
    events = []
    for user in range(users):
        better = user % 2
        for slate in range(4):
            at = START + chance.randrange(HOURS * 3_600_000)
            items = [f"i{chance.randrange(300)}-{rank}" for rank in range(10)]
            about = {"user_id": f"u{user}", "request_id": f"r{user}-{slate}"}
            shown = {} if chance.random() < 0.02 else {"items": items}
            about["surface"] = "home" if slate % 2 else "search"
            facts = {"latency_ms": chance.randrange(20, 200), "fallback": chance.random() < 0.05}
            arm = treatment if better else control
            events.append(
                {"type": "slate", "ts": at, **about, "variant": arm, "items": [], **shown, **facts}
            )
            if shown and chance.random() < (0.35 + 0.1 * better) * clicks:
                item = items[min(9, int(chance.expovariate(0.4)))]
                liked = {"type": "feedback", "ts": at + chance.randrange(600_000), **about}
                liked |= {"item_id": item}
                events.append(liked | {"feedback": "click"})
                events.append(liked | {"feedback": "watch", "value": chance.random()})
    return sorted(events, key=lambda event: event["ts"])


class Documents:
    """Everything that the page fetches, by path; a test may change it before a page is opened.

    A stream of changes ends after its first one, unless `changes` is a number: it stays open then,
    and tells when the number has changed.
    """

    changes = None

    def __init__(self, folder, control="A", treatment="B", users=1_500, clicks=1, **settings):
        config, events = folder / "page.yaml", folder / "page.jsonl"
        arms = {"control": control, "split": {control: 1, treatment: 1}}
        experiments = [one | arms for one in SETTINGS["experiments"]]
        config.write_text(yaml.safe_dump(SETTINGS | {"experiments": experiments} | settings))
        events.write_text("\n".join(map(json.dumps, traffic(control, treatment, users, clicks))))
        self.definition = load(config).definition()
        self.found = replay(self.definition, [str(events)], lambda _: None, judged=self._judge)
        self.asked = []
        now = self.made_at = round(time.time() * 1_000)
        partitions = [
            *({"partition": n, "state": "running", "lag": 0, "worker": f"w{n}"} for n in range(2)),
        ]
        self.health = {
            "ready": True, "reason": None, "topic": "recsys-events", "group": "streameval",
            "at": now, "behind_seconds": 0.4, "lag": 0, "partitions": partitions,
            "missing_partitions": [], "rejected": NONE_REJECTED,
            "workers": [{"name": "w0", "leader": True, "version": "1"}],
        }  # fmt: skip
        check = {"severity": "error", "ended": now, "seconds": 1.5, "value": 0.0}
        self.checks = [
            {"name": "counters_match_log", "state": "passed", "message": "all equal", **check},
            {"name": "logged_scores", "state": "not checked", "message": "", **check},
        ]

    def _judge(self, definition, found, users):
        self.cards = scorecards(definition, found, users)
        return sections(definition, found, users)

    def status(self):
        """The service as the server-written part of the page describes it."""
        return ServiceStatus(
            version="1.0",
            topic=self.health["topic"],
            group="streameval",
            started_at=time.time() - 3_600,
            definition=self.definition,
            counters=ProcessCounters(self.definition),
            store_up=True,
            broker_up=True,
            ready=True,
            partitions=[PartitionStatus(0), PartitionStatus(1)],
            topic_partitions=2,
            figures=self._sections(),
            scorecards=self.cards,
        )

    def _sections(self):
        return {name: rows for name, rows in self.found.items() if isinstance(rows, list)}

    def figures(self, query):
        wanted = {name: query[name] for name in ("window", "basis") if name in query}
        kept = {
            name: [row for row in rows if wanted.items() <= (wanted | row).items()]
            for name, rows in with_intervals(self._sections(), self.definition.dimensions).items()
        }
        known = {"shown": [0, 1], "of": 2, "stale": [], "missing": [], "made_at": self.made_at}
        whole = {"at": self.found["watermark"], "partitions": known, "workers": 1}
        if "section" in query:
            kept = {query["section"]: kept[query["section"]]}
        return whole | {"events": self.found["events"]} | kept

    def history(self, query):
        chance = random.Random(3)
        minutes = 60 * int(query["hours"])
        times = [START + 60_000 * minute for minute in range(minutes)]
        variants = sorted({row["variant"] for row in self.found["rates"]})
        series = [self._line(chance, minutes, variant, at) for at, variant in enumerate(variants)]
        return {"times": times, "series": series}

    def _line(self, chance, minutes, variant, order):
        level, values = 0.036 + 0.008 * order, []
        for minute in range(minutes):
            level += chance.gauss(0, 0.0004)
            values.append(None if 100 <= minute < 110 else level)
        spread = [None if value is None else 0.0035 for value in values]
        return {
            "labels": {"variant": variant},
            "value": values,
            "low": [v if v is None else v - s for v, s in zip(values, spread, strict=True)],
            "high": [v if v is None else v + s for v, s in zip(values, spread, strict=True)],
        }

    def card(self, card, metric):
        """A scorecard as `/api/v1/experiments/NAME?metric=…` has it, with its bounds over time."""
        row = card.rows[0]
        times = [START + 600_000 * step for step in range(1, 40)]
        reach = [0.09 / (step + 4) for step in range(39)]
        series = {
            "metric": metric,
            "arm": row["arm"],
            "times": times,
            "difference": [row["difference"] for _ in times],
            "low": [row["difference"] - each for each in reach],
            "high": [row["difference"] + each for each in reach],
        }
        return document_of(card) | {"history": [series]}


class Served:
    """The state that `Pages` reads."""

    stopping = False
    described_at = 1.0

    def __init__(self, status):
        self.status = status


def _json(value, status=200):
    return aiohttp.web.json_response(value, status=status)


def application(documents):
    """The routes of a worker, with the API of `documents`."""
    app = aiohttp.web.Application()
    Pages(Served(documents.status())).add_to(app)

    def served(path, answer):
        async def handler(request):
            documents.asked.append(request.path_qs)
            return answer(request)

        app.router.add_get(f"/api/v1/{path}", handler)

    def user(request):
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _json({"error": "the token is wrong: give `api_token`"}, 401)
        arms = {"ranker-v2": ["B"]}
        return _json({"user_id": request.match_info["id"], "impressions": 30, "arms": arms})

    cards = {card.name: card for card in documents.cards}
    served("figures", lambda request: _json(documents.figures(request.query)))
    served("history", lambda request: _json(documents.history(request.query)))
    listed = [document_of(card) for card in documents.cards]
    served("experiments", lambda _: _json({"experiments": listed}))
    served(
        "experiments/{name}",
        lambda r: _json(documents.card(cards[r.match_info["name"]], r.query["metric"])),
    )
    served("checks", lambda _: _json({"checks": documents.checks}))
    served("health", lambda _: _json(documents.health))
    served("users/{id}", user)
    app.router.add_get("/api/v1/stream", functools.partial(_stream, documents))
    return app


async def _stream(documents, request):
    response = aiohttp.web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    while True:
        told = documents.changes
        await response.write(b"event: changed\nid: 1\ndata: 1\n\n")
        if told is None:
            return response
        while told == documents.changes:  # noqa: ASYNC110  a test sets it from anywhere
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def serving(documents, below=""):
    """The address of a page over `documents`; `below` is a path as a proxy's, such as /tools."""
    app = application(documents)
    if below:
        inner, app = app, aiohttp.web.Application()
        app.add_subapp(below, inner)
    runner = aiohttp.web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}{below}/"
    finally:
        await runner.cleanup()
