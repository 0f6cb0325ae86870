"""The version of the installed distribution."""

from importlib.metadata import PackageNotFoundError, version


def client_version() -> str:
    """Return the installed version, or a word when run from an uninstalled tree."""
    try:
        return version("mlxfleet")
    except PackageNotFoundError:
        return "0+uninstalled"
