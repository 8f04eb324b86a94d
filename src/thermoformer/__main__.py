"""The command `thermoformer`, also as `python -m thermoformer`."""

import os
import signal
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line; Ctrl-C ends it, while modules are being imported too."""
    # A process in the background is started with the signal ignored, and stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    from ._programs import keep_programs
    from .cli import main as run

    keep_programs()
    run()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ends at once during an import: an exception in the middle of one can crash an extension module."""
    outer = frame
    while outer is not None:
        if outer.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"Interrupted while loading\n")
            os._exit(130)
        outer = outer.f_back
    signal.default_int_handler(number, frame)


if __name__ == "__main__":
    main()
