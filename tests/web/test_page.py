"""The live page: in a real browser, without uPlot, and with hostile names.

Its figures are those of a replay (`page_server`). Chromium and axe-core are needed: a test without
them skips on a laptop and fails in CI.
"""

import asyncio
import json
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from html import unescape

import aiohttp
import browser
import page_server
import programs
import pytest
import test_exposition

from streameval.base.durations import utc
from streameval.base.limits import ALL
from streameval.core.definition import Definition
from streameval.experiments.words import beside_sentences, remarks, sentences, warnings, with_beside
from streameval.web import overview, pages
from streameval.web.static_files import CHARTS, STATIC
from streameval.web.status import PartitionStatus

HOSTILE = "<img src=x onerror=alert(1)>'\"&amp;"
DRAWN = "document.querySelectorAll('#key-figures tbody tr').length > 3"
COLUMN = "document.querySelector('#key-figures thead th:nth-child(3)')"
AS_WIDE = f"{COLUMN}.getBoundingClientRect().right <= document.documentElement.clientWidth"
SEEN = "document.querySelector('#state').textContent.startsWith('Serving')"


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    return page_server.Documents(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def run():
    """Runs a coroutine in the loop that the module's browser lives in."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="module")
def tab(run):
    """Opens tabs of one browser."""
    opened = browser.browser()
    yield run(opened.__aenter__())
    run(opened.__aexit__(None, None, None))


@asynccontextmanager
async def opened(tab, documents, query="", **how):
    """A page over `documents` that has drawn its figures; it may complain about nothing."""
    async with page_server.serving(documents) as address:
        page = await tab()
        await page.open(address + query, **how)
        if how.get("scripts", True):
            await page.wait_for(f"{DRAWN} && {SEEN}")
        yield page
        assert page.complaints == []
        await page.call("Page.close")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1_440])
def test_the_page_is_whole_and_accessible(run, tab, documents, width, scheme):
    """What matters stands first, nothing is wider than the screen, axe-core finds nothing."""
    programs.need_pinned("axe-core")

    async def scenario():
        async with opened(tab, documents, width=width, scheme=scheme) as page:
            await page.wait_for("document.querySelectorAll('article svg').length > 0")
            await page.evaluate(
                "for (const one of document.querySelectorAll('details')) one.open = true"
            )
            text = await page.text()
            for sentence in sentences(documents.cards[0]):
                assert sentence in text
            assert "A 95 % interval stands in brackets" in text
            assert await page.evaluate("document.documentElement.scrollWidth") == width
            assert await page.evaluate(AS_WIDE), "two variants fit on a phone"
            await page.evaluate(programs.AXE.read_text() + "; 0")
            found = await page.evaluate("axe.run().then((found) => found.violations)")
        return [(one["id"], one["nodes"][0]["html"]) for one in found]

    assert run(scenario()) == []


def test_the_page_says_what_an_experiment_leaves_out(run, tab, tmp_path):
    documents = page_server.Documents(tmp_path, users=200)
    (card,) = documents.cards
    lacking = {"without_arm": 600, "without_arm_share": 0.3, "without_arm_fallback": 600}
    rows = [{"metric": "ndcg@10", "arm": "B", "left_out": 7, "low": None, "high": None}]
    why = ["B against A is not adjusted by what users did before: it served them."]
    card = with_beside(replace(card, split=card.split | lacking), "without_crossed", rows, 0, why)
    documents.cards = [card]
    told = [*beside_sentences(card), *warnings(card), *remarks(card)]
    assert len(told) == 3

    async def scenario():
        async with opened(tab, documents) as page:
            await page.wait_for("document.querySelector('#experiments svg') !== null")
            return await page.text("#experiments")

    text = run(scenario())
    for sentence in told:
        assert sentence in text


@pytest.mark.parametrize("figures", [[], ["lists", "nowcast"]])
def test_the_page_offers_the_figures_that_windows_hold(run, tab, tmp_path, figures):
    """Where lists and nowcasts are left out, they are no choice, and the rest is drawn."""
    documents = page_server.Documents(tmp_path, users=200, figures=figures)

    async def scenario():
        async with opened(tab, documents) as page:
            offered = "[...document.querySelector('[name=basis]').options].map((one) => one.value)"
            return (
                await page.evaluate(offered),
                await page.evaluate("document.querySelector('#lists').hidden"),
                await page.text("#key-figures"),
            )

    bases, hidden, text = run(scenario())
    assert bases == ["matured", *(["nowcast"] if figures else []), "live"]
    assert hidden is not bool(figures)
    assert "NDCG" in text
    assert ("empty" in text.lower()) is bool(figures)


def test_the_figures_of_the_page_are_those_of_the_document(run, tab, documents):
    """Each variant's key figure with the ends of its 95 % interval, as the document has it."""

    async def scenario():
        async with opened(tab, documents, "?window=1h&basis=live") as page:
            return await page.text("#key-figures")

    wanted = [
        100 * number
        for row in documents.figures({"window": "1h", "basis": "live"})["rates"]
        if row["feedback"] == "click"
        for number in (row[f"positive_rate{end}"] for end in ("", "_low", "_high"))
    ]
    mean = r"\s+([\d.]+) % \(([\d.]+) to ([\d.]+)\)"
    written = re.search(rf"positive rate \(click\){mean}{mean}", run(scenario()))
    for text, number in zip(written.groups(), wanted, strict=True):
        assert abs(float(text) - number) <= 0.5 * 10 ** -len(text.partition(".")[2]), text


def test_a_choice_is_kept_in_the_address(run, tab, documents):
    """It survives a reload, and the figures and the chart are asked for anew."""
    ask = """(() => {
      const select = document.querySelector("select[name=NAME]");
      select.value = "VALUE";
      select.dispatchEvent(new Event("change", { bubbles: true }));
    })()"""

    async def scenario():
        async with opened(tab, documents) as page:
            for name, value in (("window", "24h"), ("figure", "ndcg@10"), ("'by.variant'", "B")):
                await page.evaluate(ask.replace("NAME", name).replace("VALUE", value))
            await page.wait_for(
                "document.querySelector('#key-figures caption').textContent.startsWith('24h')"
            )
            address = await page.evaluate("location.search")
            await page.call("Page.reload")
            await page.wait_for(f"document.readyState === 'complete' && {DRAWN}")
            kept = "[...document.querySelectorAll('#choice select')].map((one) => one.value)"
            heads = "[...document.querySelectorAll('#key-figures thead th')]"
            disabled = await page.evaluate("document.querySelector('select[name=kind]').disabled")
            return (
                address,
                await page.evaluate(kept),
                await page.evaluate(f"{heads}.map((one) => one.innerText)"),
                disabled,
            )

    address, kept, heads, disabled = run(scenario())
    assert address == "?window=24h&figure=ndcg%4010&by.variant=B"
    assert kept == ["24h", "matured", "ndcg@10", "click", "B", "6"]
    assert heads == ["figure", "B", "compared"]
    assert disabled, "a ranking metric has no kind"
    assert any("section=ranking&figure=ndcg" in path for path in documents.asked)


def test_variants_stand_side_by_side_over_all_values_of_further_dimensions(run, tab, tmp_path):
    """Each surface is one choice away, and then the totals make room."""
    documents = page_server.Documents(tmp_path, dimensions=["variant", "surface"])
    heads = "[...document.querySelectorAll('#key-figures thead th')].map((one) => one.innerText)"

    last = "#key-figures tbody tr:last-child"

    async def scenario(query):
        async with opened(tab, documents, query) as page:
            await page.wait_for(f"document.querySelector('{last}')?.innerText.startsWith('slates')")
            return await page.evaluate(heads), await page.text(last)

    slates = {
        row["variant"]: f"{row['slates']:,}"
        for row in documents.found["lists"]
        if (row["window"], row["basis"], row["surface"]) == ("1h", "matured", ALL)
    }
    shown, counted = run(scenario(""))
    assert shown == ["figure", "A", "B", "compared"]
    assert counted.split() == ["slates", slates["A"], slates["B"]]
    shown, _ = run(scenario("?by.surface=&by.variant=A"))
    assert shown == ["figure", "home", "search", "compared"]


def test_hostile_names_do_no_harm(run, tab, tmp_path):
    """A variant that is markup is shown as text."""
    documents = page_server.Documents(tmp_path, "A", HOSTILE)

    async def scenario():
        async with opened(tab, documents) as page:
            await page.evaluate(
                "for (const one of document.querySelectorAll('details')) one.open = true"
            )
            return await page.text(), await page.evaluate("document.images.length")

    text, images = run(scenario())
    assert HOSTILE in text
    assert images == 0


def test_the_page_stands_below_a_path_of_a_proxy_too(run, tab, documents):
    async def scenario():
        async with page_server.serving(documents, "/tools/streameval") as address:
            page = await tab()
            await page.open(address)
            await page.wait_for(f"{DRAWN} && document.querySelectorAll('article svg').length > 0")
            links = await page.evaluate("[...document.links].map((link) => link.pathname)")
            assert page.complaints == []
            await page.call("Page.close")
        return links

    below = [link for link in run(scenario()) if link != "/tools/streameval/"]
    assert "/tools/streameval/metrics" in below
    assert all(link.startswith("/tools/streameval/") for link in below)


def test_a_failed_check_opens_its_part_and_says_what_to_do(run, tab, documents):
    failed = documents.checks[0] | {"state": "failed", "message": "12 users differ: run a recount"}

    async def scenario(checks):
        documents.checks, before = checks, documents.checks
        try:
            async with opened(tab, documents) as page:
                await page.wait_for("document.querySelector('#checks').open === true")
                return await page.text("#checks")
        finally:
            documents.checks = before

    assert "12 users differ: run a recount" in run(scenario([*documents.checks, failed]))


def test_a_user_is_shown_to_those_with_the_token(run, tab, documents):
    """By the keyboard alone, and a wrong token is told what to do."""

    async def scenario(token, wanted):
        async with page_server.serving(documents) as address:
            page = await tab()
            await page.open(address)
            await page.wait_for(DRAWN)
            await page.tab_to("#user summary")
            await page.press("Enter")
            await page.wait_for("document.querySelector('#user form') !== null")
            await page.tab_to("#user [name=id]")
            await page.write("u7")
            await page.tab_to("#user [name=token]")
            await page.write(token)
            await page.tab_to("#user button")
            await page.press("Enter")
            await page.wait_for(f"document.querySelector('#user').innerText.includes('{wanted}')")
            return await page.text("#user")

    assert "impressions\t30" in run(scenario(page_server.TOKEN, "impressions"))
    assert "the token is wrong" in run(scenario("guess", "token is wrong"))


def test_arrow_keys_read_the_chart(run, tab, documents):
    """The legend has the figures of the point at the cursor, which they move by one."""
    if CHARTS not in STATIC:
        programs.absent("uPlot is missing in the package: install npm, then make clean test")
    legend = "document.querySelector('#history .legend').innerText"
    values = documents.history({"hours": "6"})["series"][0]["value"]

    async def scenario():
        async with opened(tab, documents) as page:
            await page.wait_for("document.querySelector('#history .uplot') !== null")
            await page.tab_to("#history .plot")
            found = []
            for key in ("ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowRight"):
                await page.press(key)
                await page.evaluate("new Promise(requestAnimationFrame)")
                found.append(float(re.search(r"A ([\d.]+) ", await page.evaluate(legend))[1]))
            return found

    wanted = [round(100 * values[at], 2) for at in (-1, -2, -3, -2)]
    assert len(set(wanted)) == 3
    assert run(scenario()) == wanted


def test_a_page_does_not_ask_for_figures_while_a_stream_is_open_and_quiet(
    run, tab, documents, monkeypatch
):
    """It goes on asking for the health of the group, and asks for figures when it is told."""
    monkeypatch.setattr(overview, "REFRESH_SECONDS", 1)
    monkeypatch.setattr(documents, "changes", 0)

    def asked(name):
        return sum(path.startswith(f"/api/v1/{name}") for path in documents.asked)

    async def until(condition):
        async with asyncio.timeout(browser.PATIENCE):
            while not condition():  # noqa: ASYNC110  the page tells nobody
                await asyncio.sleep(0.05)

    async def quiet():
        """Wait until the page looks three times without asking for figures."""
        async with asyncio.timeout(browser.PATIENCE):
            while True:
                before, end = asked("figures"), asked("health") + 3
                await until(lambda end=end: asked("health") >= end)
                if asked("figures") == before:
                    return before

    async def scenario():
        async with opened(tab, documents):
            before = await quiet()
            documents.changes += 1
            await until(lambda: asked("figures") > before)
            await quiet()

    run(scenario())


def test_the_page_says_when_it_is_stale_and_keeps_the_figures(run, tab, documents):
    """A worker that answers no more, after the time in which a page expects an answer."""

    async def scenario():
        async with page_server.serving(documents) as address:
            page = await tab()
            await page.open(address)
            await page.wait_for(DRAWN)
        # The clock of the page is set on: nobody waits in a test.
        await page.evaluate(
            "performance.now = ((real) => () => real() + 60000)(performance.now.bind(performance))"
        )
        await page.wait_for("document.querySelector('#state').textContent.startsWith('Stale')")
        await page.wait_for("document.querySelector('#trouble').hidden === false")
        return await page.text("#key-figures"), await page.text("#trouble")

    figures, trouble = run(scenario())
    assert "NDCG@10" in figures
    assert "Not everything could be fetched" in trouble


def test_the_head_says_what_is_rejected_and_how_old_figures_are(run, tab, documents):
    """Much that is rejected is a warning, little is a remark; old figures are not up to date."""
    some = {"records": 2_340, "reasons": {"invalid": 31}, "is_much": True, "latest": "offset 88: x"}
    documents.health["rejected"] = some | {"message": "31 of 2,340 records rejected: 31 invalid"}

    async def head():
        async with opened(tab, documents) as page:
            await page.wait_for("document.querySelector('#freshness').textContent.includes('88')")
            return await page.text("#state"), await page.text("#freshness")

    state, freshness = run(head())
    assert state == "Serving, but 31 of 2,340 records rejected: 31 invalid"
    assert freshness.endswith("latest rejected: offset 88: x")
    documents.health["rejected"]["is_much"] = False
    state, freshness = run(head())
    assert state == "Serving, up to date"
    assert "31 of 2,340 records rejected: 31 invalid" in freshness
    documents.made_at -= 300_000
    assert run(head())[0] == "Serving, but the figures are 5 min old"


def test_the_first_look_is_at_the_smallest_window_with_figures(run, tab, documents):
    """Live ones where nothing has matured; then the page says when the first figures mature."""
    selected = (
        "[...document.querySelectorAll('#choice select')].slice(0, 2).map((one) => one.value)"
    )

    async def look(query=""):
        async with opened(tab, documents, query) as page:
            await page.wait_for("document.querySelector('#note').textContent !== ''")
            caption = "document.querySelector('#key-figures caption').textContent"
            await page.wait_for(f"{caption} === ({selected}).join(', ')")
            return await page.evaluate(selected), await page.text("#note")

    assert run(look())[0] == ["1h", "matured"]
    found = documents.found
    for section in ("rates", "ranking", "lists", "values"):
        found[section] = [row for row in found[section] if row["basis"] == "live"]
    found["maturity"] = [row | {"maturity": 0.0} for row in found["maturity"]]
    chosen, note = run(look())
    assert chosen == ["1h", "live"]
    at = documents.found["watermark"] + documents.definition.horizon
    assert f"The first matured figures come by {utc(at)} UTC at the latest." in note
    assert run(look("?window=24h"))[0] == ["24h", "live"]


def test_the_page_asks_again_until_the_workers_have_shared_their_figures(
    run, tab, documents, monkeypatch
):
    """The first reader after a quiet hour is told that they are asked."""
    silent = ["until the first text has been read"]
    real = documents.figures

    def nothing_yet(query):
        found = real(query)
        if silent:
            found |= {"partitions": found["partitions"] | {"shown": []}, "lists": [], "rates": []}
        return found

    monkeypatch.setattr(documents, "figures", nothing_yet)

    async def scenario():
        async with page_server.serving(documents) as address:
            page = await tab()
            await page.open(address)
            await page.wait_for("document.querySelector('#choice') !== null")
            first = await page.text("#key-figures")
            silent.clear()
            await page.wait_for("document.querySelector('#note').textContent !== ''")
            return first, await page.text("#key-figures")

    first, then = run(scenario())
    assert first == "The workers are asked for their figures."
    assert "NDCG@10" in then


def test_tables_keep_their_scroll_when_figures_change(run, tab, documents):
    """A reader who has scrolled to a column stays there, and the part that is open stays open."""

    async def scenario():
        async with opened(tab, documents, width=390) as page:
            await page.evaluate("document.querySelector('#all').open = true")
            await page.wait_for("document.querySelector('#all .table') !== null")
            await page.evaluate("document.querySelector('#all .table').scrollLeft = 120")
            documents.found["watermark"] += 61_000
            before = await page.text("#freshness")
            await page.wait_for(
                f"document.querySelector('#freshness').innerText !== {json.dumps(before)}"
            )
            return await page.evaluate("document.querySelector('#all .table').scrollLeft")

    assert run(scenario()) == 120


def test_without_uplot_the_page_says_so_and_shows_the_numbers(run, tab, documents, monkeypatch):
    """As in a checkout whose build had no npm."""
    monkeypatch.setattr(
        overview,
        "_FILES",
        re.sub(rf"<script defer src=static/{CHARTS}></script>", "", overview._FILES),
    )

    async def scenario():
        async with opened(tab, documents) as page:
            await page.wait_for("document.querySelector('#history-table table') !== null")
            return await page.text("#main")

    text = run(scenario())
    assert "built without npm and lacks uPlot" in text
    assert "3.93 % (3.58 to 4.28)" in text


def test_without_javascript_the_page_says_where_the_figures_are(run, tab, documents):
    async def scenario():
        async with opened(tab, documents, scripts=False) as page:
            return await page.text()

    text = run(scenario())
    assert "Serving" in text
    assert "The figures are also on /metrics and /api/v1/figures." in text


def test_a_page_costs_no_rendering_for_each_viewer(run, documents, monkeypatch):
    """The document is written once a tick, static files are sent once."""
    written = []
    real = overview.render
    monkeypatch.setattr(pages.overview, "render", lambda *given: written.append(1) or real(*given))

    async def scenario():
        async with page_server.serving(documents) as address, aiohttp.ClientSession() as session:
            for _ in range(3):
                async with session.get(address) as answer:
                    assert answer.headers["Cache-Control"] == "no-store"
            for name, file in STATIC.items():
                async with session.get(f"{address}static/{name}") as answer:
                    assert await answer.read() == file.body
                    assert answer.headers["Content-Security-Policy"] == overview.POLICY
                    tag = answer.headers["ETag"]
                async with session.get(
                    f"{address}static/{name}", headers={"If-None-Match": tag}
                ) as answer:
                    assert answer.status == 304
            async with session.get(f"{address}static/..%2fpages.py") as answer:
                assert answer.status == 404

    run(scenario())
    assert len(written) == 1


def test_the_page_needs_nothing_but_this_worker():
    """The policy lets files of the worker in and nothing inline; no file names another host."""
    assert overview.POLICY.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in overview.POLICY
    own = {
        name: file.body.decode() for name, file in STATIC.items() if not name.startswith("uPlot")
    }
    for name, text in own.items():
        hosts = set(re.findall(r"https?://[^\"'/ ]+", text))
        assert hosts <= {"http://www.w3.org"}, name  # the name of SVG, which nobody fetches
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text


def test_a_figure_of_no_positives_and_few_users_is_not_certain(run, tab, tmp_path):
    """The page says that the users are few."""
    documents = page_server.Documents(tmp_path, users=100, clicks=0)
    rows = documents.figures({"window": "1h", "basis": "matured"})["rates"]
    users = next(row["users"] for row in rows if row["variant"] == "A")
    bound = 100 * 3.8415 / (users + 3.8415)  # Wilson's upper bound of 0 of so many users
    ends = rf"({bound:.0f}|{bound:.2f})"
    rate = rf"positives per impression \(click\)\s+0(\.00)? % \(0(\.00)? to {ends}\)"

    async def read():
        async with opened(tab, documents) as page:
            return await page.text("#figures")

    found = run(read())
    assert re.search(rate, found)
    assert "Fewer than 300 users: A, B." in found


# --- What the server writes ---------------------------------------------------------------------


def test_the_server_escapes_everything():
    definition = Definition(dimensions=(HOSTILE,))
    status = test_exposition.a_status(topic=HOSTILE, definition=definition)
    html = overview.render(status, 1_700_000_100.0)
    assert "<img" not in html
    assert unescape(html).count(HOSTILE) == 2, "the title and the head"
    assert re.findall(r"<script[^>]*>", html) == re.findall(r"<script[^>]*>", overview._FILES)
    tags = re.sub(r"data-settings='[^']*'", "", "".join(re.findall(r"<[a-z]+ [^>]*>", html)))
    assert " on" not in tags, "no handlers in the markup"
    assert "style=" not in tags


def test_a_worker_that_is_not_well_says_so():
    status = test_exposition.a_status(partitions=[PartitionStatus(0)], broker_up=False)
    assert "Kafka does not answer" in overview.render(status, 1_700_000_100.0)


def test_every_figure_of_the_document_can_be_chosen(documents):
    """A mean with an error that the page does not know would be missing from its chart."""
    known = {(one["section"], one["figure"]) for one in overview.choices(documents.definition)}
    for section in ("rates", "ranking", "values", "lists"):
        errors = [name for name in documents.found[section][0] if name.endswith("_stderr")]
        assert {(section, name.removesuffix("_stderr")) for name in errors} <= known


def test_a_path_that_does_not_exist_names_those_that_do(run, documents):
    """The pages of the API are what people ask for without its prefix."""

    async def ask(path):
        async with (
            page_server.serving(documents) as address,
            aiohttp.ClientSession() as session,
            session.get(address + path) as answer,
        ):
            return answer.status, await answer.text()

    for path in ("health", "experiments/ranker", "figures"):
        status, said = run(ask(path))
        assert status == 404
        assert f"no such page, is /api/v1/{path.partition('/')[0]} meant? There are" in said
    assert run(ask("nowhere"))[1].startswith("no such page. There are /, /metrics, /healthz")
    status, said = run(ask("runbook"))
    assert status == 200
    assert '<h3 id="streamevalabsent">' in said
