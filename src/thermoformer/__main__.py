"""`python -m thermoformer`, the same as the command `thermoformer`."""

from .cli import main

if __name__ == "__main__":
    main()
