"""The explorer in a real browser: what a user sees, moves, clicks, saves and hands in."""

from __future__ import annotations

import contextlib
import functools
import http.server
import io
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from chromium import OPTIONS, chromium
from explorer_process import Explorer, explorer

from thermoformer.app.dynamics_view import DynamicsChoice

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra `test`")
pytest.importorskip("marimo", reason="needs the extra `app`")

# Compilation on a busy machine; what is warm takes a hundredth of it.
PATIENCE = 120_000
NUMBERS = "[data-testid=numbers]"


@pytest.fixture(scope="module")
def browser():
    """One window for all pages: the second page finds the scripts of the first in the browser's cache."""
    executable = chromium()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=OPTIONS)
        yield browser.new_context(viewport={"width": 1500, "height": 1000}, accept_downloads=True)
        browser.close()


@pytest.fixture(scope="module")
def running(browser):
    with explorer() as here:
        yield here


class Page:
    """A page of the explorer, with what went wrong in it and what it asked for."""

    def __init__(self, browser, link: str) -> None:
        self.page = browser.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.asked: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(link)
        self.page.wait_for_selector(NUMBERS)

    def numbers(self) -> str:
        return self.page.inner_text(NUMBERS)

    def figures(self) -> list[str]:
        """What the lines, points and images of all figures are drawn as."""
        drawn = self.page.locator("svg.tf-drawing").locator("path, rect, polygon, image")
        names = "['d', 'transform', 'href', 'points', 'y', 'height', 'fill']"
        marks = f"found => found.map(one => {names}.map(name => one.getAttribute(name)).join())"
        return drawn.evaluate_all(marks)

    def drawn(self, count: int) -> None:
        """Waits for so many figures."""
        shown = self.page.locator("svg.tf-drawing")
        self.until(lambda: shown.count() >= count)

    def diagram(self):
        """The image of the orbit diagram."""
        return self.page.locator("svg[aria-label='orbit diagram'] image").first

    def at(self, share: float) -> tuple[float, float]:
        """Where to click in the diagram, at a share of its width."""
        box = self.diagram().bounding_box()
        return box["x"] + share * box["width"], box["y"] + 0.5 * box["height"]

    def beta(self) -> str:
        return self.numbers().split("β\n")[1].split("\n")[0]

    def slider(self, label: str):
        return self.page.locator("marimo-slider").filter(has_text=label).get_by_role("slider").first

    def move(self, label: str, key: str = "ArrowRight") -> None:
        """Moves a slider by a key, and waits for the numbers to change."""
        before = self.numbers()
        self.slider(label).focus()
        self.page.keyboard.press(key)
        self.until(lambda: self.numbers() != before)

    def until(self, true, seconds: float = 150.0) -> None:
        """Waits for what is to come about."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, self.page.inner_text("body")[:2000]
            self.page.wait_for_timeout(50)

    def save(self, kind: str, number: int, folder: Path) -> None:
        """Saves the data or the picture of a figure under its own name."""
        buttons = self.page.get_by_role("link", name=kind).or_(self.page.get_by_role("button", name=kind))
        with self.page.expect_download() as download:
            buttons.nth(number).click()
        download.value.save_as(folder / download.value.suggested_filename)

    def go(self, view: str) -> None:
        self.page.get_by_role("tab", name=view).click()


@pytest.fixture
def opened(browser, running):
    """Opens pages; whatever the test did, none of them may have failed within or asked anyone else for anything."""
    pages: list[Page] = []

    def open_page(query: str = "") -> Page:
        pages.append(Page(browser, running.link + query))
        return pages[-1]

    yield open_page
    for page in pages:
        page.page.close()
        own = ("data:", "blob:", running.link)
        assert [url for url in page.asked if not url.startswith(own)] == []
        assert page.errors == []


def test_learning(opened):
    page = opened()
    page.drawn(5)
    numbers, figures = page.numbers(), page.figures()
    page.move("width N")
    assert page.numbers() != numbers
    page.until(lambda: page.figures() != figures)
    # A slider without a new solution at hand: every width is solved anew.
    figures = page.figures()
    page.move("noise across")
    page.until(lambda: page.figures() != figures)
    text = page.page.inner_text("body")
    assert "Traceback" not in text


def test_dynamics_and_a_click_in_the_diagram(opened):
    page = opened("?view=Dynamics")
    page.drawn(4)
    figures = page.figures()
    page.move("β")
    page.until(lambda: page.figures() != figures)
    beta = page.beta()
    page.move("γ")
    assert page.beta() == beta  # the other slider stays where it was
    page.page.wait_for_selector("text=512 of 512 columns")
    assert page.page.locator("[data-testid=diagram] progress").count() == 0, "no bar that stays full"
    page.diagram().scroll_into_view_if_needed()
    page.page.wait_for_timeout(500)
    before = page.numbers()
    page.page.mouse.click(*page.at(0.75))
    page.until(lambda: page.numbers() != before)
    # The same place again, after the slider has gone elsewhere.
    clicked = page.numbers()
    page.move("β")
    page.page.wait_for_timeout(3000)
    page.page.mouse.click(*page.at(0.75))
    page.until(lambda: page.numbers() == clicked)
    beta = float(page.beta())
    low, high = DynamicsChoice().between
    assert beta == pytest.approx(low + 0.75 * (high - low), abs=0.02 * (high - low))
    assert float(page.page.url.split("dynamics.beta=")[1].split("&")[0]) == pytest.approx(beta, abs=1e-4)


def test_every_click_counts_while_the_diagram_is_drawn_anew(opened):
    page = opened("?view=Dynamics&dynamics.gamma=193")  # no other test has this diagram
    page.diagram().scroll_into_view_if_needed()
    share = "() => Number(document.querySelector('[data-testid=diagram] progress')?.value ?? 0)"
    low, high = DynamicsChoice().between
    while_refining = 0
    for number in range(8):
        place = 0.15 + 0.09 * number
        while_refining += page.page.evaluate(share) < 1
        page.page.mouse.click(*page.at(place))
        wanted = low + place * (high - low)
        # Columns are as far apart as the level has them.
        page.until(lambda wanted=wanted: abs(float(page.beta()) - wanted) < 0.02 * (high - low), seconds=30)
        # Long enough for the diagram to go on, and each time at another moment of its being drawn.
        page.page.wait_for_timeout(900 + 70 * number)
    assert while_refining >= 2


def test_the_diagram_refines_until_it_is_stopped(opened):
    page = opened("?view=Dynamics&dynamics.gamma=187")  # no other test has this diagram
    share = "() => Number(document.querySelector('[data-testid=diagram] progress')?.value ?? 0)"
    page.until(lambda: page.page.evaluate(share) > 0)
    first, began = page.page.evaluate(share), time.monotonic()
    page.until(lambda: page.page.evaluate(share) > first)
    pace = 1000 * (time.monotonic() - began)  # longer on a busy machine
    page.page.get_by_role("switch").first.click()
    page.page.wait_for_timeout(1500 + pace)  # the part under way is finished
    stopped = page.page.evaluate(share)
    assert first < stopped < 1
    page.page.wait_for_timeout(2500 + 2 * pace)
    assert page.page.evaluate(share) == stopped


def test_the_state_survives_a_reload(opened):
    page = opened("?learning.temperature=0.1&learning.layers=good,random")
    page.move("width N")
    numbers, url = page.numbers(), page.page.url
    assert "learning.width=" in url and "learning.layers=good" in url
    page.page.reload()
    page.page.wait_for_selector(NUMBERS)
    assert page.numbers() == numbers
    other = opened("?" + url.split("?")[1])
    assert other.numbers() == numbers


def test_a_link_that_says_nonsense(opened):
    page = opened("?learning.width=wide&view=Elsewhere")
    said = page.page.locator("[role=alert]").all_inner_texts()
    assert any("width: got 'wide'; expected a whole number" in text for text in said)
    assert any("view: got 'Elsewhere'" in text for text in said)


def test_figures_and_their_data_are_saved(opened, tmp_path):
    page = opened()
    page.drawn(5)
    page.save("data", 0, tmp_path)
    rows = np.genfromtxt(tmp_path / "accuracy.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    assert len(rows) >= 8 and "width" in rows.dtype.names
    page.save("picture", 0, tmp_path)
    file = tmp_path / "accuracy.svg"
    alone = page.page.context.new_page()
    alone.goto(f"file://{file}")
    assert alone.locator("svg > path").count() >= 2
    # Files follow the sliders.
    before = file.read_text()
    page.move("width N")
    page.until(lambda: "N = 11: " in "".join(page.page.locator("svg.tf-drawing").first.all_text_contents()))
    for kind, number in (("data", 3), ("picture", 0)):
        page.save(kind, number, tmp_path)
    assert "N = 11: " in file.read_text() and "N = 11: " not in before
    kernel = np.genfromtxt(tmp_path / "kernel.csv", delimiter=",", names=True)
    assert len(kernel) == 100**2 and np.isfinite(kernel["kernel"]).all()
    page.go("Dynamics")
    page.page.wait_for_selector("svg[aria-label^='orbit of']")  # until then the figures are those of Learning
    page.drawn(4)
    page.save("picture", 0, tmp_path)
    alone.goto(f"file://{tmp_path / 'orbit.svg'}")
    assert alone.locator("svg > path").count() >= 3


@pytest.mark.parametrize("view", ["Learning", "Dynamics"])
def test_a_narrow_screen_needs_no_scrolling_sideways(opened, view):
    page = opened(f"?view={view}")
    page.page.set_viewport_size({"width": 390, "height": 800})
    page.drawn({"Learning": 5, "Dynamics": 4}[view])
    page.page.get_by_text("Show me the code").first.click()
    # A wide drawing keeps a size that can be read, and scrolls in a box of its own.
    wider = """() => [...document.querySelectorAll('.tf-card, .tf-wide, .tf-drawing, .tf-numbers, .tf-code')]
        .filter(one => !one.closest('.tf-under') && one.getBoundingClientRect().right > innerWidth).length"""
    page.until(lambda: page.page.evaluate(wider) == 0, seconds=20)
    wide = page.page.locator(".tf-wide .tf-drawing")
    assert view == "Learning" or wide.bounding_box()["width"] >= 700
    assert page.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert all(page.page.get_by_role("button", name=name).count() == 1 for name in ("controls", "menu"))
    assert page.page.evaluate("document.querySelector('#App').scrollWidth <= window.innerWidth")


@pytest.mark.parametrize(
    ("view", "label", "size"), [("Learning", "training examples", "50"), ("Dynamics", "context L", "8")]
)
def test_a_new_size_says_that_it_is_compiled(opened, view, label, size):
    page = opened(f"?view={view}")
    page.drawn({"Learning": 5, "Dynamics": 4}[view])
    numbers = page.numbers()
    page.page.locator("marimo-dropdown").filter(has_text=label).get_by_role("combobox").select_option(size)
    page.page.wait_for_selector("[data-testid=compiling] progress")
    page.page.wait_for_selector(NUMBERS)
    page.until(lambda: page.numbers() != numbers)


def test_show_me_the_code(opened):
    page = opened()
    page.page.get_by_role("button", name="Show me the code").click()
    lines = page.page.locator("code", has_text="from thermoformer.learning import").last
    lines.wait_for(state="visible")
    assert "solve(" in lines.inner_text()


def hand_in(page: Page, name: str, content: bytes) -> None:
    page.page.locator("input[type=file]").first.set_input_files(
        files=[{"name": name, "mimeType": "application/octet-stream", "buffer": content}]
    )


def test_a_users_own_arrays(opened):
    page = opened()
    page.page.get_by_role("button", name="My own arrays").click()
    hand_in(page, "mine.csv", b"label,one.a\n1,x\n")
    page.page.wait_for_selector("text=file: got 'x' in row 1, column 2; expected a finite number")
    assert "Traceback" not in page.page.inner_text("body")
    if page.page.locator("input[type=file]").count() == 0:  # the panel was drawn anew, and closed
        page.page.get_by_role("button", name="My own arrays").click()
    generator, stream = np.random.default_rng(0), io.BytesIO()
    xi = generator.normal(size=(120, 3, 5))
    np.savez(stream, xi=xi, y=np.sign(xi[:, 0, 0]))
    hand_in(page, "mine.npz", stream.getvalue())
    page.page.wait_for_selector(NUMBERS)
    page.drawn(5)
    # Width and temperature apply; noise, stay probability, training examples and heads are those of the task.
    sliders = page.page.locator("marimo-slider").get_by_role("slider")
    page.until(lambda: [one.is_disabled() for one in sliders.all()] == [False, False, True, True, True])
    assert all(one.is_disabled() for one in page.page.locator("marimo-dropdown select").all())
    # Folded: on a busy machine the page is drawn once more, which would fold it again.
    assert 'read_arrays("mine.npz")' in page.page.locator(".tf-code code").first.text_content()


FOREIGN = """<!doctype html><title>waiting</title><script>
const target = "127.0.0.1:PORT";
const tried = {};
async function all() {
  try {
    await fetch(`http://${target}/`, {method: "GET"});
    tried.read = "passed";
  } catch (error) { tried.read = "refused"; }
  try {
    const sent = await fetch(`http://${target}/api/kernel/set_ui_element_value`, {method: "POST", body: "{}"});
    tried.post = sent.ok ? "passed" : "refused";
  } catch (error) { tried.post = "refused"; }
  tried.socket = await new Promise(done => {
    const socket = new WebSocket(`ws://${target}/ws?session_id=s_zzzzzz`);
    socket.onopen = () => done("passed");
    socket.onerror = () => done("refused");
  });
  tried.script = await new Promise(done => {
    const tag = document.createElement("img");
    tag.onload = () => done("passed");
    tag.onerror = () => done("refused");
    tag.src = `http://${target}/favicon.ico`;
    document.body.append(tag);
  });
  const frame = document.createElement("iframe");
  frame.src = `http://${target}/`;
  document.body.append(frame);
  document.title = JSON.stringify(tried);
}
addEventListener("load", all);
</script><body></body>"""


def test_another_origin_cannot_drive_it(browser, running, tmp_path):
    (tmp_path / "index.html").write_text(FOREIGN.replace("PORT", str(running.port)))
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_address[1]}/")
        page.wait_for_function("document.title != 'waiting'", timeout=PATIENCE)
        assert page.title() == '{"read":"refused","post":"refused","socket":"refused","script":"refused"}'
        page.wait_for_timeout(1000)
        (frame,) = page.frames[1:]
        assert frame.url.startswith("chrome-error:") and "thermoformer" not in frame.content()
        page.close()
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Says nothing of what it serves."""

    def log_message(self, *_) -> None:
        """No word."""


def spent(here: Explorer) -> float:
    """Seconds of processor time of the explorer."""
    fields = Path(f"/proc/{here.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_a_closed_page_stops_computing(browser):
    """Of a fresh explorer, whose diagram is far from complete when the page goes."""
    with explorer() as here:
        page = Page(browser, here.link + "?view=Dynamics&dynamics.gamma=200")
        share = "() => Number(document.querySelector('[data-testid=diagram] progress')?.value ?? 0)"
        page.until(lambda: page.page.evaluate(share) > 0, seconds=180)
        assert page.page.evaluate(share) < 1
        page.page.close()
        # What was compiling comes to its end first; work for a page would go on and on.
        end, used = time.monotonic() + 150, 4.0
        while used >= 0.4:
            assert time.monotonic() < end, f"{used:.1f} s of processor time in 4 s, for nobody"
            before = spent(here)
            time.sleep(4)
            used = spent(here) - before


def test_ten_pages_at_once(browser, running):
    """Each with a diagram under way; every one answers."""
    with contextlib.ExitStack() as all_pages:
        pages = []
        for number in range(10):
            page = Page(browser, running.link + f"?view=Dynamics&dynamics.start={number % 3}")
            all_pages.callback(page.page.close)
            pages.append(page)
        for page in pages:
            page.move("β")
        assert all(page.errors == [] for page in pages)
