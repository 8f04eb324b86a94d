"""What tests of learning share: their programs are many and run shortly, so the compiler optimises little."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def _compiled_quickly() -> Iterator[None]:
    """Compilation takes two thirds of the time. Documentation, examples and other tests have the usual programs."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
