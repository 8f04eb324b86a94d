"""Double precision for the whole library, switched on once at import.

The theory needs float64: log-determinants of ill-conditioned kernels lose every digit in float32.
Set the environment variable ``THERMOFORMER_KEEP_PRECISION=1`` to leave JAX's own setting alone.
"""

import os

import jax

from ._programs import keep_programs

if "THERMOFORMER_CACHE" in os.environ:
    keep_programs()
if os.environ.get("THERMOFORMER_KEEP_PRECISION", "0") in ("", "0"):
    jax.config.update("jax_enable_x64", True)

# Recent GPUs multiply float32 matrices in TF32 unless told otherwise; every product says what it wants.
MATMUL_PRECISION = jax.lax.Precision.HIGHEST
