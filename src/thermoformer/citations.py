"""What to cite: the library, the papers whose theory it runs, and the software it stands on."""

from __future__ import annotations

from . import __version__

_ENTRIES = r"""
@software{thermoformer,
  author  = {{thermoformer developers}},
  title   = {thermoformer: the statistical mechanics of transformers},
  version = {VERSION},
  year    = {2026},
}

@inproceedings{tiberi2024dissecting,
  author        = {Tiberi, Lorenzo and Mignacco, Francesca and Irie, Kazuki and Sompolinsky, Haim},
  title         = {Dissecting the Interplay of Attention Paths in a Statistical Mechanics Theory of Transformers},
  booktitle     = {Advances in Neural Information Processing Systems},
  volume        = {37},
  year          = {2024},
  eprint        = {2405.15926},
  archiveprefix = {arXiv},
}

@misc{poclopez2024dynamical,
  author        = {Poc-L{\'o}pez, {\'A}ngel and Aguilera, Miguel},
  title         = {Dynamical Mean-Field Theory of Self-Attention Neural Networks},
  year          = {2024},
  eprint        = {2406.07247},
  archiveprefix = {arXiv},
}

@software{jax2018github,
  author = {Bradbury, James and Frostig, Roy and Hawkins, Peter and Johnson, Matthew James and Leary, Chris and
            Maclaurin, Dougal and Necula, George and Paszke, Adam and Vander{P}las, Jake and
            Wanderman-{M}ilne, Skye and Zhang, Qiao},
  title  = {{JAX}: composable transformations of {P}ython+{N}um{P}y programs},
  url    = {https://github.com/jax-ml/jax},
  year   = {2018},
}

@article{kidger2021equinox,
  author  = {Kidger, Patrick and Garcia, Cristian},
  title   = {{E}quinox: neural networks in {JAX} via callable {P}y{T}rees and filtered transformations},
  journal = {Differentiable Programming workshop at Neural Information Processing Systems},
  year    = {2021},
}

@misc{phan2019composable,
  author        = {Phan, Du and Pradhan, Neeraj and Jankowiak, Martin},
  title         = {Composable Effects for Flexible and Accelerated Probabilistic Programming in {NumPyro}},
  year          = {2019},
  eprint        = {1912.11554},
  archiveprefix = {arXiv},
}

@article{benettin1980lyapunov,
  author  = {Benettin, Giancarlo and Galgani, Luigi and Giorgilli, Antonio and Strelcyn, Jean-Marie},
  title   = {{L}yapunov characteristic exponents for smooth dynamical systems and for {H}amiltonian systems;
             a method for computing all of them. Part 1: Theory},
  journal = {Meccanica},
  volume  = {15},
  pages   = {9--20},
  year    = {1980},
}

@inproceedings{michel2019sixteen,
  author        = {Michel, Paul and Levy, Omer and Neubig, Graham},
  title         = {Are Sixteen Heads Really Better than One?},
  booktitle     = {Advances in Neural Information Processing Systems},
  volume        = {32},
  year          = {2019},
  eprint        = {1905.10650},
  archiveprefix = {arXiv},
}
"""


def bibtex() -> str:
    """BibTeX entries of the library, the papers of both theories, and what else its results rest on.

    Example:
        >>> from thermoformer import bibtex
        >>> print(bibtex().splitlines()[0])
        @software{thermoformer,
    """
    return _ENTRIES.strip().replace("VERSION", __version__)
