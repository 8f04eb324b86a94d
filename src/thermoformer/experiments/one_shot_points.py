"""Points of the one-shot experiment under the names that the folders of its sweeps have for them."""

from .one_shot.points import (
    one_shot_free,
    one_shot_limit,
    one_shot_limit_free,
    one_shot_point,
    one_shot_sampled,
    one_shot_trained,
)

__all__ = [
    "one_shot_free",
    "one_shot_limit",
    "one_shot_limit_free",
    "one_shot_point",
    "one_shot_sampled",
    "one_shot_trained",
]
