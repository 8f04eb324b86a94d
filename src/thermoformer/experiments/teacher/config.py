"""Settings of the experiment with known teachers."""

from __future__ import annotations

from dataclasses import dataclass

from ..._validation import fail
from ...learning import Architecture
from ..sweeping import check_fields

CASES = MATCHED, MISSING, UNUSED = ("same heads", "head missing", "head unused")
APPROACHES = LIMIT, SADDLE, ONE_LOOP, EXACT = ("gaussian process", "saddle", "one-loop", "exact")
SCORES = ("order parameter", "contribution", "evidence")
# The student's heads, those of a network with one more head, and the head that a teacher leaves unused.
HEADS, MORE_HEADS, UNUSED_HEAD = (2, 2), (3, 2), (0, 1)
PAIR = ["path", "path_other"]


@dataclass(frozen=True)
class TeacherConfig:
    """Everything that decides the numbers of a run.

    Arguments:
        teachers: how many independent teachers at each width, each with its own heads and examples.
        exact_teachers: the first of them, for which the exact posterior is sampled too.
        exact_up_to: the largest width at which it is sampled.
        seed: teacher i at width N follows from (seed, i, N). A teacher has the same examples at every P/N.
        widths: N, of teacher and student.
        ratios: P/N, training examples over width.
        tokens, token_width: T and N0 of the inputs, independent standard-normal tokens.
        attention_scale: standard deviation of the logits of the random heads.
        temperature: variance of the noise on the labels, and temperature of the student.
        draws, chains: of the exact posterior; as many draws again are warm-up.
    """

    teachers: int = 12
    exact_teachers: int = 12
    exact_up_to: int = 100
    seed: int = 0
    widths: tuple[int, ...] = (10, 30, 100, 300, 1000)
    ratios: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
    tokens: int = 8
    token_width: int = 32
    attention_scale: float = 4.0
    temperature: float = 0.1
    test_examples: int = 500
    draws: int = 200
    chains: int = 2

    def __post_init__(self) -> None:
        positive = ("attention_scale", "temperature")
        check_fields(self, above_zero=positive, ascending={"widths": "width", "ratios": "ratio"})
        paths = Architecture(MORE_HEADS, 1).paths
        if self.widths[0] < paths:
            raise fail("widths", self.widths, f"{paths} or more, the paths of the network with one more head")
        for name in ("teachers", "exact_teachers"):
            if getattr(self, name) < 2:
                raise fail(name, getattr(self, name), "2 or more, for errors over teachers")
        features = Architecture(HEADS, 1).paths * self.token_width
        if self.test_examples <= features:
            raise fail("test_examples", self.test_examples, f"more than {features}, the features of all paths")

    @classmethod
    def quick(cls, seed: int = 0) -> TeacherConfig:
        """The small size: two widths and ratios, and fewer teachers and draws."""
        return cls(teachers=3, exact_teachers=2, seed=seed, widths=(20, 100), ratios=(10.0, 100.0), draws=100)


def training_examples(width: int, ratio: float) -> int:
    """P, one or more."""
    return max(1, round(width * ratio))
