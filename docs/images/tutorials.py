"""Take pictures of saved pages (`make screenshots`): charts of each tutorial, and the top of an ingest."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from os import environ
from pathlib import Path

import click
from markdown.extensions.toc import slugify
from playwright.sync_api import Browser, sync_playwright

from workbench.host.home import Home
from workbench.services import control as services

PROJECT = Path(__file__).parents[2]
CHROMIUM = "/usr/bin/chromium"
#: The titles of the cells whose charts are taken, by tutorial.
CHARTS = {
    "01_gps": ("Wrong: headings as speeds", "The tracks"),
    "02_hits": ("Topiclake: counts by zip code", "A pie for each window"),
    "03_nest": ("The report as a chart",),
    "04_taxi": ("Trips by month",),
    "05_wikimedia": ("Edits of bots and of people", "Edits per window"),
}
INGEST = "ingest"
#: A million trips, the tutorial's default, take minutes.
PARAMETERS = {"04_taxi": ("-p", "trips=20000")}


@click.command()
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), default=Path(__file__).parent)
@click.argument("names", nargs=-1)
def main(to: Path, names: tuple[str, ...]) -> None:
    """Run the notebooks NAMES, by default the tutorials and `ingest`, and take their pictures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        home = Home(Path(folder) / "home", PROJECT)
        services.up(home, click.echo)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            for name in names or (*CHARTS, INGEST):
                if name == INGEST:
                    saved_page(home, "gps_publish")
                    take_ingest(browser, saved_page(home, INGEST), to)
                else:
                    saved = saved_page(home, f"tutorials/{name}", *PARAMETERS.get(name, ()))
                    take(browser, saved, name, to)
        finally:
            browser.close()
            services.down(home, click.echo)


def saved_page(home: Home, notebook: str, *options: str) -> Path:
    """Run a notebook, and return the page of the run."""
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "run", f"notebooks/{notebook}.py", *options],
        cwd=PROJECT,
        env=environ | {"WORKBENCH_HOME": str(home.folder)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    (page,) = re.findall(r"^page +(\S.*)$", done.stdout, re.MULTILINE)
    return Path(page)


def take(browser: Browser, saved: Path, tutorial: str, to: Path) -> None:
    """Take the charts of one saved page."""
    page = browser.new_page(viewport={"width": 1100, "height": 900}, color_scheme="light")
    page.goto(saved.as_uri())
    for title in CHARTS[tutorial]:
        heading = page.locator(".jp-Cell", has=page.get_by_role("heading", name=title, exact=True))
        outputs = heading.locator("xpath=following-sibling::*[contains(@class, 'jp-Cell')][1]").locator(
            ".jp-OutputArea-output"
        )
        chart = outputs.filter(has=page.locator("svg, img, .plotly-graph-div")).first
        chart.scroll_into_view_if_needed()
        # The script of a chart draws it after the page is loaded.
        page.wait_for_timeout(2_000)
        file = to / "tutorials" / tutorial / f"{slugify(title, '-')}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        chart.screenshot(path=file)
        click.echo(f"{file}: {file.stat().st_size // 1024} kB")
    page.close()


def take_ingest(browser: Browser, saved: Path, to: Path) -> None:
    """Take the top of an ingest's page: the facts of the run, and its result."""
    page = browser.new_page(viewport={"width": 1100, "height": 700}, color_scheme="light")
    page.goto(saved.as_uri())
    table = page.locator("table").first
    box = table.bounding_box()
    assert box is not None  # noqa: S101 - an element that is shown has a box
    file = to / "ingest_page.png"
    page.screenshot(path=file, clip={"x": 0, "y": 0, "width": 1100, "height": box["y"] + box["height"] + 20})
    click.echo(f"{file}: {file.stat().st_size // 1024} kB")
    page.close()


if __name__ == "__main__":
    main()
