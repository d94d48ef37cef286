"""The pictures of the docs, taken anew: the live page, the report and the chart of a notebook.

    python tests/screenshots.py [page] [report] [notebook]

The page is that of `streameval demo`, once its experiment has decided a figure and another is
open, and it has run long enough for its charts. The report is over the outcome files of
simulated days in which B is better. The chart is what the blocks of docs/notebooks.md draw. Look
at a picture before you commit it.
"""

import asyncio
import contextlib
import functools
import json
import pathlib
import re
import signal
import sys
import tempfile

import browser
import planted_world as planted
from clean_service import results
from PIL import Image

from streameval.checks import run
from streameval.web.overview import CHARTS, STATIC

ROOT = pathlib.Path(__file__).parent.parent
DOCS = ROOT / "docs"
PROGRAM = (sys.executable, "-m", "streameval")
# Until then the matured window of the demo is filled, and its history has some minutes.
SECONDS = 600
MOST_SECONDS = 1_200
PAGE, PHONE = (1_440, 1_880), (390, 2_270)
# As far as the third row of its charts, which stand in two columns.
REPORT = (1_100, "document.querySelectorAll('.charts figure')[4].getBoundingClientRect().top")
GAP, GREY = 20, (128, 134, 132)
COLOURS = 256
# So many days decide that B's AUC is better, and leave NDCG and MAP open.
LIFT, DAYS = 1.3, 6
# Both charts, and the figures that the scripts draw in place of the server's.
DRAWN = (
    "document.querySelectorAll('.uplot').length > 1"
    " && document.querySelectorAll('#key-figures tbody svg').length > 3"
)


async def picture(tab, address, size, scheme="light", drawn="true"):
    """The top of a page as an image; the height in `size` is a number or an expression."""
    page = await tab()
    width, height = size
    await page.open(address, width=width, scheme=scheme)
    await page.wait_for(drawn)
    height = await page.evaluate(f"{height}")
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        await page.picture(file.name, height)
        return Image.open(file.name).convert("RGB")


def save(image, name):
    """Write a picture of few colours, which is a third of the size; rare ones stay as they are."""
    few = image.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(DOCS / name, optimize=True)
    print(f"docs/{name}", flush=True)


def side_by_side(left, right):
    """Two images with a gap between them."""
    size = (left.width + GAP + right.width, max(left.height, right.height))
    both = Image.new("RGB", size, GREY)
    both.paste(left, (0, 0))
    both.paste(right, (left.width + GAP, 0))
    return both


# --- the live page --------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def demo():
    """The lines of a demo that runs; it ends with the block."""
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, "demo", "--seconds", str(2 * MOST_SECONDS), stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process.stdout
    finally:
        process.send_signal(signal.SIGINT)
        await process.communicate()


async def told(lines):
    """The address of a demo's page, once a figure is decided and another is open."""
    address, seconds, text = "", 0, ""
    async with asyncio.timeout(MOST_SECONDS):
        async for line in lines:
            said = line.decode()
            print(said, end="", flush=True)
            address = address or "".join(re.findall(r"^status page +(\S+)", said))
            if ran := re.match(r" *(\d+) s ", said):
                # The sentences of the look before stand below its line, wrapped.
                decided = " is ahead of " in text and "no difference shown" in text
                if seconds >= SECONDS and decided:
                    return address
                seconds, text = int(ran[1]), ""
            text += f"{' '.join(said.split())} "
    raise RuntimeError("the demo has ended")


async def page():
    """The page of the demo: light, dark, and both on a phone."""
    if CHARTS not in STATIC:
        sys.exit("the charts of the page are missing: install npm, and streameval anew")
    async with demo() as lines, browser.browser() as tab:
        shot = functools.partial(picture, tab, await told(lines), drawn=DRAWN)
        save(await shot(PAGE), "page.png")
        save(await shot(PAGE, "dark"), "page-dark.png")
        save(side_by_side(await shot(PHONE), await shot(PHONE, "dark")), "page-phone.png")


# --- the report -----------------------------------------------------------------------------------


class Better(planted.Fault):
    """No fault: B shows what people like and its scores know that, and people come at all hours."""

    def slates(self, slates, chance):
        for slate in slates:
            # The hours of these days have gaps of up to five hours between them.
            slate.ts += chance.randrange(2 * planted.HOUR)
            if slate.variant == "B":
                slate.chances = [min(LIFT * each, 1) for each in slate.chances]
                slate.scores = [min(LIFT * each, 1) for each in slate.scores]
        return slates


async def report():
    """The report of simulated days, with what the checks say of them."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        deployment = planted.Deployment(root / "service")
        for _ in range(DAYS):
            deployment.day(Better())
        service = deployment.service
        snapshots = {"snapshot": service.root / f"day{DAYS - 1}"}
        snapshots["reference"] = service.root / f"day{DAYS - 2}"
        found = results(service, planted.GIVEN, **snapshots)
        checks, html = root / "checks.json", root / "report.html"
        checks.write_text(json.dumps(run.document(list(found.values()), service.now())))
        chosen = ["--metrics", "ndcg@10,map@10,auc", "--by", "variant", "--against", "A"]
        written = ["--checks", checks, "--report", html]
        command = [*PROGRAM, "evaluate", service.outcomes.name, *chosen, *written]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=service.root, stdout=asyncio.subprocess.DEVNULL
        )
        assert await process.wait() == 0
        async with browser.browser() as tab:
            save(await picture(tab, html.as_uri(), REPORT), "report.png")


# --- the notebook ---------------------------------------------------------------------------------


async def notebook():
    """The chart of docs/notebooks.md."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        save(drawn(pathlib.Path("notebook.png")), "notebook.png")


def drawn(chart):
    """The picture that the blocks of docs/notebooks.md, which are one session, write."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "notebooks.md").read_text(), re.DOTALL)
    names = {}
    while not chart.exists():
        exec(blocks.pop(0), names)
    return Image.open(chart).convert("RGB")


PICTURES = {"page": page, "report": report, "notebook": notebook}

if __name__ == "__main__":
    for asked in sys.argv[1:] or PICTURES:
        asyncio.run(PICTURES[asked]())
