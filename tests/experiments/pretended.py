"""Samplers that cost nothing: the theory with noise on it. Real ones take long to compile and are tested elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from thermoformer.learning import Diagnostics, Posterior, Prediction
from thermoformer.learning.comparison import Comparison

NOISE = 0.01
# The pretended sampler of networks has not mixed, and says so.
REASON = "R-hat is 1.200, over 1.03"


@dataclass(frozen=True, eq=False)
class Pretended(Posterior):
    prediction: Prediction

    def predict(self, features):
        return self.prediction

    def predictor_draws(self, features):
        raise NotImplementedError

    def path_readout(self):
        raise NotImplementedError


def pretend_to_sample(
    solution, features, labels, test, test_labels, *, key, exact_draws, sampled_draws, chains, progress
) -> Comparison:
    """In place of `beside_theory`."""
    generator = np.random.default_rng(key)
    theory = solution.predict(test)
    noise = np.full_like(theory.mean, NOISE)
    results, predictions, unmixed = {"saddle": solution}, {"saddle": theory}, {}
    for name, draws, r_hat in (("exact", exact_draws, 1.0), ("sampled", sampled_draws, 1.2)):
        if draws is None:
            continue
        progress(0, 2, name)
        record = Diagnostics("nuts", chains, draws, 200, r_hat, 200.0, 200.0, "", 0, None, 0, 1.0, 1.0)
        shape = theory.mean.shape
        mean, factor = theory.mean + NOISE * generator.normal(size=shape), 1 + NOISE * generator.uniform(size=shape)
        predictions[name] = Prediction(mean, factor * theory.variance, noise, noise)
        order = solution.order_parameter
        results[name] = Pretended(
            solution.architecture, solution.temperature, order, 0 * order, record, xr.DataTree(), predictions[name]
        )
        if record.reason:
            unmixed[name] = record.reason
    return Comparison(
        architecture=solution.architecture,
        temperature=solution.temperature,
        results=results,
        predictions=predictions,
        test_labels=np.asarray(test_labels),
        reference="exact",
        seconds=dict.fromkeys(results, 1.0),
        left_out={},
        unmixed=unmixed,
    )
