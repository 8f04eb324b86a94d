"""How long the explorer takes to answer: one reader, and ten at once, in a real browser.

    python benchmarks/explorer.py

A slider is moved by a key; the page's own clock says when the numbers have changed and been painted, and when the last
figure has (the curve over all widths, or the phase plane). Warm: what a view opens with is compiled before. The
baseline of every ratio is one reader.

    python benchmarks/explorer.py --baseline ../other/src

times the explorer of another checkout in the same run, slider by slider, as the baseline for one reader.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import sync_playwright

MOVES = (
    ("Learning", "width N"),
    ("Learning", "temperature"),
    ("Learning", "noise across"),
    ("Dynamics", "β"),
    ("Dynamics", "γ"),
)
NUMBERS = "[data-testid=numbers]"
LAST_FIGURES = {
    "Learning": "svg[aria-label='test accuracy against width']",
    "Dynamics": "svg[aria-label^='phase plane']",
}
# From the key to the first change of each place that has been painted.
CLOCK = """places => {
    const now = () => places.map(place => document.querySelector(place)?.innerHTML);
    let start, before, found = [];
    document.addEventListener("keydown", () => { start = performance.now(); before = now(); found = []; }, true);
    const look = () => now().forEach((text, place) => {
        if (start && found[place] === undefined && text !== undefined && text !== before[place]) {
            found[place] = null;
            requestAnimationFrame(() => setTimeout(() => { found[place] = (performance.now() - start) / 1000; }));
        }
    });
    new MutationObserver(look).observe(document.body, {subtree: true, childList: true, attributes: true,
                                                       characterData: true});
    window.answered = () => places.every((_, place) => found[place] > 0) ? found : null;
}"""


def main() -> None:
    """Starts the explorer, opens pages, moves sliders, prints medians and largest times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", default="chromium", help="the browser to use")
    parser.add_argument("--readers", type=int, default=10)
    parser.add_argument("--moves", type=int, default=8)
    parser.add_argument("--pause", type=float, default=1.5, help="seconds between moves, in which figures are drawn")
    parser.add_argument("--view", choices=("Learning", "Dynamics"), help="one view only")
    parser.add_argument("--baseline", help="folder `src` of another checkout, timed in the same run")
    given = parser.parse_args()
    moves = [move for move in MOVES if given.view in (None, move[0])]
    with contextlib.ExitStack() as stack:
        links = {"baseline": stack.enter_context(explorer(given.baseline))} if given.baseline else {}
        links["one reader"] = stack.enter_context(explorer())
        driver = stack.enter_context(sync_playwright())
        browser = driver.chromium.launch(
            executable_path=shutil.which(given.chromium), args=["--no-sandbox", "--disable-gpu"]
        )
        measure(browser, links, moves, given)
        browser.close()


@contextlib.contextmanager
def explorer(source: str | None = None) -> Iterator[str]:
    """The link of an explorer that runs until the end, of the package in a folder or of this one."""
    command = [sys.executable, "-m", "thermoformer", "explore", "--no-browser"]
    environment = os.environ | ({"PYTHONPATH": source} if source else {})
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"Explorer: (\S+)", process.stdout.readline())
            assert found is not None
            yield found[1]
        finally:
            # Whatever happened: the explorer would be waited for.
            process.terminate()


def measure(browser: Any, links: dict[str, str], moves: list[tuple[str, str]], given: argparse.Namespace) -> None:
    """One reader, of every version, then as many as asked for."""
    # The first page of each view waits for what is compiled.
    for link in links.values():
        for view in dict(moves):
            opened(browser, link, view).context.close()
    alone = {}
    for view, label in moves:
        times = {}
        for who, link in links.items():
            page = opened(browser, link, view)
            times[who] = [moved(page, label, given.pause) for _ in range(given.moves)]
            page.context.close()
            say(who, view, label, times[who], times.get("baseline", times[who]))
        alone[view, label] = times["one reader"]
    link = links["one reader"]
    others = [opened(browser, link, "Dynamics", start=number) for number in range(given.readers - 1)]
    for view, label in moves if others else ():
        page = opened(browser, link, view)
        times = [moved(page, label, given.pause) for _ in range(given.moves)]
        # The others are not asleep: each moves a slider between two moves of the one that is timed.
        times += [busy(page, label, other) for other in others]
        page.context.close()
        say(f"{given.readers} readers", view, label, times, alone[view, label])


def opened(browser: Any, link: str, view: str, start: int = 0) -> Any:
    """A page in a context of its own, ready and warm."""
    page = browser.new_context(viewport={"width": 1500, "height": 1000}).new_page()
    page.goto(f"{link}?view={view}&dynamics.start={start}", timeout=180_000)
    for place in (NUMBERS, LAST_FIGURES[view]):
        page.wait_for_selector(place, timeout=180_000)
    # The diagram has refined by then.
    page.wait_for_timeout(6000)
    page.evaluate(CLOCK, [NUMBERS, LAST_FIGURES[view]])
    return page


def moved(page: Any, label: str, pause: float = 0.0) -> list[float]:
    """Seconds from the key to new numbers and to the last figure, after a pause."""
    page.wait_for_timeout(1000 * pause)
    press(page, label)
    return page.wait_for_function("() => window.answered()", polling=50, timeout=60_000).json_value()


def busy(page: Any, label: str, other: Any) -> list[float]:
    """The same, just after another reader has moved a slider and before the answer is there."""
    press(other, "γ")
    return moved(page, label)


def press(page: Any, label: str) -> None:
    """Moves a slider by one step."""
    page.locator("marimo-slider").filter(has_text=label).get_by_role("slider").first.focus()
    page.keyboard.press("ArrowRight")


def say(who: str, view: str, label: str, times: list[list[float]], baseline: list[list[float]]) -> None:
    """One row: median and largest of the numbers and of the last figure, and medians against one reader's."""
    columns = zip(("numbers", "last figure"), zip(*times, strict=True), zip(*baseline, strict=True), strict=True)
    parts = []
    for name, those, one in columns:
        median, ratio = statistics.median(those), statistics.median(those) / statistics.median(one)
        parts.append(f"{name} {1000 * median:5.0f} ms, largest {1000 * max(those):5.0f} ms, × {ratio:.1f}")
    print(f"{who:10} {view:9} {label:14} {'; '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
