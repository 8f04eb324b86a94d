"""How long the explorer takes to answer: one reader, and ten at once, in a real browser.

    python benchmarks/explorer.py

A slider is moved by a key; the clock stops when the numbers on the page have changed. Warm: what a view opens with is
compiled before. The baseline of every ratio is one reader.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import time
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


def main() -> None:
    """Starts the explorer, opens pages, moves sliders, prints medians and largest times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", default="chromium", help="the browser to use")
    parser.add_argument("--readers", type=int, default=10)
    parser.add_argument("--moves", type=int, default=8)
    parser.add_argument("--pause", type=float, default=1.5, help="seconds between moves, in which figures are drawn")
    parser.add_argument("--view", choices=("Learning", "Dynamics"), help="one view only")
    given = parser.parse_args()
    moves = [move for move in MOVES if given.view in (None, move[0])]
    command = [sys.executable, "-m", "thermoformer", "explore", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, sync_playwright() as driver:
        try:
            assert process.stdout is not None
            found = re.search(r"Explorer: (\S+)", process.stdout.readline())
            assert found is not None
            browser = driver.chromium.launch(
                executable_path=shutil.which(given.chromium), args=["--no-sandbox", "--disable-gpu"]
            )
            measure(browser, found[1], moves, given)
            browser.close()
        finally:
            # Whatever happened: the explorer would be waited for.
            process.terminate()


def measure(browser: Any, link: str, moves: list[tuple[str, str]], given: argparse.Namespace) -> None:
    """One reader, then as many as asked for."""
    alone = {}
    for view, label in moves:
        page = opened(browser, link, view)
        alone[view, label] = [moved(page, label, given.pause) for _ in range(given.moves)]
        page.context.close()
        say("one reader", view, label, alone[view, label], alone[view, label])
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
    page.wait_for_selector(NUMBERS, timeout=180_000)
    # The diagram has refined by then.
    page.wait_for_timeout(6000)
    return page


def moved(page: Any, label: str, pause: float = 0.0) -> float:
    """Seconds from the key to new numbers, after a pause."""
    page.wait_for_timeout(1000 * pause)
    before = page.inner_text(NUMBERS)
    page.locator("marimo-slider").filter(has_text=label).get_by_role("slider").first.focus()
    start = time.perf_counter()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "([where, before]) => document.querySelector(where) && document.querySelector(where).innerText != before",
        arg=[NUMBERS, before],
        polling=10,
        timeout=60_000,
    )
    return time.perf_counter() - start


def busy(page: Any, label: str, other: Any) -> float:
    """The same, just after another reader has moved a slider and before the answer is there."""
    other.locator("marimo-slider").filter(has_text="γ").get_by_role("slider").first.focus()
    other.keyboard.press("ArrowRight")
    return moved(page, label)


def say(who: str, view: str, label: str, times: list[float], baseline: list[float]) -> None:
    """One row: median, largest, and the median against one reader's."""
    median, ratio = statistics.median(times), statistics.median(times) / statistics.median(baseline)
    row = f"{who:12} {view:9} {label:14} median {1000 * median:5.0f} ms, largest {1000 * max(times):5.0f} ms"
    print(f"{row}, × {ratio:.1f}", flush=True)


if __name__ == "__main__":
    main()
