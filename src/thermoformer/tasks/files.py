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

from .._files import MissingFileError
from .._validation import InputError, fail, one_of

VARIABLE = "THERMOFORMER_DATA"

_ADDRESSES = {
    "omniglot": "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
    "fashion-mnist": "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "mnist": "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "text/trec": "https://cogcomp.org/Data/QA/QC/",
    "text/sst2": "https://dl.fbaipublicfiles.com/glue/data/",
    "stories260K": "https://huggingface.co/karpathy/tinyllamas/resolve/main/stories260K/",
}
# sha256 of each file, by its name under the folder, or under the cache.
_CHECKSUMS = {
    "omniglot/images_background.zip": "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
    "omniglot/images_evaluation.zip": "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
    "fashion-mnist/t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "fashion-mnist/t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    "mnist/t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "mnist/t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    "text/trec/train_5500.label": "9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3",
    "text/trec/TREC_10.label": "033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e",
    "text/sst2/SST-2.zip": "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
    "stories260K/stories260K.bin": "b0a507e7ad0f626624f17112325e66691f9076d622e1d3274d103d00299f2696",
    "stories260K/tok512.bin": "037cb335abb25d1fa9e8ecae30ed2a3a8ace9302862ebcdc05d51a6bbb10c312",
}
# Address and checksum of each file, by the same name.
FILES = {
    name: (_ADDRESSES[name.rpartition("/")[0]] + name.rpartition("/")[2], checksum)
    for name, checksum in _CHECKSUMS.items()
}


def data_file(name: str) -> Path:
    """The path of a data file on this machine; it is fetched where it is not there yet.

    Arguments:
        name: one of `FILES`, as in "mnist/t10k-labels-idx1-ubyte.gz".

    Example:
        >>> data_file("mnist.zip")
        Traceback (most recent call last):
        thermoformer.InputError: name: got 'mnist.zip'; expected one of 'omniglot/images_background.zip', ...
    """
    one_of("name", name, tuple(FILES))
    return own_file(name) or _fetched(name)


def own_file(name: str) -> Path | None:
    """The file of this name in the user's own folder; None if there is none, or no folder is set.

    Arguments:
        name: any path below the folder, as in "text/sst2/train.tsv"; it need not be one of `FILES`.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise MissingFileError(VARIABLE, f"{folder!r}, which is no folder", f"a folder with {name}")
    own = Path(folder) / name
    return own if own.is_file() else None


def _fetched(name: str) -> Path:
    """The file in the cache; it is fetched if it is missing or has another checksum."""
    address, checksum = FILES[name]
    kept = Path(pooch.os_cache("thermoformer")) / name
    if kept.is_file() and pooch.file_hash(str(kept), alg="sha256") != checksum:
        warnings.warn(f"{kept} is damaged or altered (its checksum is wrong): it is fetched again", stacklevel=3)
    try:
        return Path(pooch.retrieve(address, f"sha256:{checksum}", fname=kept.name, path=kept.parent))
    # A refused connection, a wrong address and a download with another checksum, in this order.
    except (OSError, ValueError) as error:
        raise OSError(
            f"{name} could not be fetched from {address} ({error}); to go on without, put the file there by hand as "
            f"{kept}, or as {name} into a folder of yours that the environment variable {VARIABLE} names"
        ) from error


def damaged(file: str | Path, error: object, kind: str) -> InputError:
    """The error for a data file of some kind that cannot be read to its end."""
    return fail("file", f"{file}, which is damaged ({error})", f"a whole {kind}")
