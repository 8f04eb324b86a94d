"""Data files: from a folder of the user's, or fetched once and kept, with checksums.

The folder that the environment variable ``THERMOFORMER_DATA`` names is looked into first. What lies there is the
user's own and is read as it is. Everything else is fetched from the official places into pooch's cache, and must have
the checksum that is written here.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pooch

from .._validation import one_of

VARIABLE = "THERMOFORMER_DATA"

_OMNIGLOT = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist/"

# Name under the folder, or under the cache: address and sha256.
FILES = {
    "omniglot/images_background.zip": (
        _OMNIGLOT + "images_background.zip",
        "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
    ),
    "omniglot/images_evaluation.zip": (
        _OMNIGLOT + "images_evaluation.zip",
        "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
    ),
    "fashion-mnist/t10k-images-idx3-ubyte.gz": (
        _FASHION + "t10k-images-idx3-ubyte.gz",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ),
    "fashion-mnist/t10k-labels-idx1-ubyte.gz": (
        _FASHION + "t10k-labels-idx1-ubyte.gz",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    "mnist/t10k-images-idx3-ubyte.gz": (
        _MNIST + "t10k-images-idx3-ubyte.gz",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    "mnist/t10k-labels-idx1-ubyte.gz": (
        _MNIST + "t10k-labels-idx1-ubyte.gz",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
}


def data_file(name: str) -> Path:
    """The path of a data file on this machine; it is fetched where it is not there yet.

    Arguments:
        name: one of `FILES`, as in "mnist/t10k-labels-idx1-ubyte.gz".

    Example:
        >>> data_file("mnist.zip")
        Traceback (most recent call last):
        ValueError: name: got 'mnist.zip'; expected one of 'omniglot/images_background.zip', ...
    """
    one_of("name", name, tuple(FILES))
    folder = os.environ.get(VARIABLE)
    if folder:
        if not Path(folder).is_dir():
            raise FileNotFoundError(f"{VARIABLE}: got {folder!r}, which is no folder; expected a folder with {name}")
        if (own := Path(folder) / name).is_file():
            return own
    return _fetched(name)


def _fetched(name: str) -> Path:
    """The file in the cache, checked, and fetched where it is missing or not the one that belongs there."""
    address, checksum = FILES[name]
    cache = Path(pooch.os_cache("thermoformer"))
    kept = cache / name
    if kept.is_file() and pooch.file_hash(str(kept), alg="sha256") != checksum:
        warnings.warn(f"{kept} is damaged or altered (its checksum is wrong): it is fetched again", stacklevel=3)
    store = pooch.create(path=cache, base_url="", registry={name: f"sha256:{checksum}"}, urls={name: address})
    try:
        return Path(store.fetch(name))
    # A refused connection, a wrong address and a download with another checksum, in this order.
    except (OSError, ValueError) as error:
        raise OSError(
            f"{name} could not be fetched from {address} ({error}); to go on without, put the file there by hand as "
            f"{kept}, or as {name} into a folder of yours that the environment variable {VARIABLE} names"
        ) from error
