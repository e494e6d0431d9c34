"""The version of this release."""

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("neve")
    except PackageNotFoundError:
        return "0+source"


__version__ = _installed()
"""Version of the installed package; `0+source` in a source tree that is not installed."""
