"""Points of the one-shot experiment under the names that the folders of its sweeps have for them."""

from .one_shot import points

one_shot_point, one_shot_limit, one_shot_trained = points.one_shot_point, points.one_shot_limit, points.one_shot_trained
one_shot_free, one_shot_limit_free = points.one_shot_free, points.one_shot_limit_free
one_shot_sampled = points.one_shot_sampled
