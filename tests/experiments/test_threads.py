"""Parts of a run in threads: results in order, and no thread outlives an error in another; Ctrl-C waits for none."""

from __future__ import annotations

import threading
import warnings

import pytest

from thermoformer._progress import silent
from thermoformer.experiments.threads import in_threads, within
from thermoformer.learning import SamplingWarning


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order(workers):
    seen = []

    def task(number, report):
        report(number, 3, "here")
        return number

    tasks = [lambda report, number=number: task(number, report) for number in range(3)]
    assert in_threads(tasks, lambda *report: seen.append(report), workers) == [0, 1, 2]
    assert sorted(seen) == [(number, 3, "here") for number in range(3)]


@pytest.mark.parametrize("first_fails", [True, False])
def test_an_error_stops_the_others_at_their_next_report(first_fails):
    started, ended = threading.Event(), threading.Event()

    def failing(report):
        assert started.wait(10)
        raise RuntimeError("no")

    def endless(report):
        started.set()
        try:
            while True:
                report(0, 1, "still here")
        except InterruptedError:
            ended.set()
            raise

    with pytest.raises(RuntimeError, match="no"):
        in_threads([failing, endless] if first_fails else [endless, failing], silent, workers=2)
    assert ended.is_set()


def test_an_interruption_does_not_wait_for_the_others():
    started, free, ended = threading.Event(), threading.Event(), threading.Event()

    def interrupted(report):
        assert started.wait(10)
        raise KeyboardInterrupt

    def long(report):
        started.set()
        free.wait(60)  # computes, and reports nothing
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        in_threads([interrupted, long], silent, workers=2)
    assert not ended.is_set()
    free.set()
    assert ended.wait(10)


def test_chains_that_have_not_mixed_do_not_warn():
    in_threads([lambda report: warnings.warn("few", SamplingWarning, stacklevel=1)] * 2, silent, workers=2)


def test_progress_within_a_step():
    seen = []
    within(lambda *report: seen.append(report), 2, 8, "seed 1")(1, 4, "exact")
    within(lambda *report: seen.append(report), 2, 8, "seed 1", counts=True)(1, 4, "exact")
    assert seen == [(2, 8, "seed 1: exact"), (3, 8, "seed 1: exact")]


def test_bad_input():
    with pytest.raises(ValueError, match="workers: got 0; expected a whole number, 1 or more"):
        in_threads([], silent, workers=0)
