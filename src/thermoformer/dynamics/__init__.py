"""Self-attention that feeds on its own output: maps, chaos and phase diagrams."""

from .attraction import Basins, basins
from .cycles import Bifurcation, Cycle, NoCycleError, bifurcation_point, find_cycle
from .diagrams import attractors, chaotic_intervals, intervals, orbit_diagram, phase_diagram, regime_names
from .features import Features
from .finite import FiniteNetwork, FiniteOrbit
from .fluctuations import Fluctuations, PhaseDiffusion, fluctuations, phase_diffusion, stationary_covariance
from .lyapunov import LyapunovSpectrum, kaplan_yorke_dimension, local_exponents, lyapunov_spectrum
from .maps import DiscreteMap
from .meanfield import MeanField, Window
from .orbits import MapOrbit, Orbit, autocorrelation, iterate, orbit, orbit_statistics, power_spectrum
from .regimes import REGIMES, Lifetime, Regime, lifetime, regime

__all__ = [
    "REGIMES",
    "Basins",
    "Bifurcation",
    "Cycle",
    "DiscreteMap",
    "Features",
    "FiniteNetwork",
    "FiniteOrbit",
    "Fluctuations",
    "Lifetime",
    "LyapunovSpectrum",
    "MapOrbit",
    "MeanField",
    "NoCycleError",
    "Orbit",
    "PhaseDiffusion",
    "Regime",
    "Window",
    "attractors",
    "autocorrelation",
    "basins",
    "bifurcation_point",
    "chaotic_intervals",
    "find_cycle",
    "fluctuations",
    "intervals",
    "iterate",
    "kaplan_yorke_dimension",
    "lifetime",
    "local_exponents",
    "lyapunov_spectrum",
    "orbit",
    "orbit_diagram",
    "orbit_statistics",
    "phase_diagram",
    "phase_diffusion",
    "power_spectrum",
    "regime",
    "regime_names",
    "stationary_covariance",
]
