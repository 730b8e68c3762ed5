"""Fetches the stores that tests start, which takes minutes in a clone: `python -m tests.support.stores`."""

from __future__ import annotations

import click

from workbench.host.home import Home
from workbench.services.azurite import Azurite
from workbench.services.s3_gateway import S3Gateway


def main() -> None:
    """Fetch or build each program that the cache does not hold."""
    home = Home.find()
    for store in (S3Gateway(home), Azurite(home)):
        store.program(click.echo)


if __name__ == "__main__":
    main()
