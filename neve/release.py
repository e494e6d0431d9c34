"""Which release this is."""

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("neve")
    except PackageNotFoundError:
        return "0+source"


__version__ = _installed()
"""As the installed package tells it; run from a source tree that was never installed: 0+source."""
