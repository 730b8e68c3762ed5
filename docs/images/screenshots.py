"""Make the pictures of the dashboard (`make screenshots`): real streams, embedded services, Chromium."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from playwright.sync_api import Browser, Page, expect, sync_playwright
from psutil import Process

from workbench.dashboard.serving import dashboard_during
from workbench.host import processes
from workbench.host.home import Home
from workbench.services import control as services

PROJECT = Path(__file__).parents[2]
CHROMIUM = "/usr/bin/chromium"
SECONDS = 300
NOTEBOOK = f"""# Databricks notebook source
import json
import topiclake as tl
from confluent_kafka import Producer
from topiclake_examples.gps import publish_tracks

gps = tl.load_settings("gps", {{"trigger": "2 seconds", "max_offsets_per_trigger": "1500"}})
publish_tracks(gps, {str(PROJECT / "data" / "gps_tracks.csv")!r}, devices=60)
producer = Producer(tl.client_settings(gps.kafka))
for number in range(40):
    producer.produce("gps", value=[b"not Avro at all", b"", None, bytes([0, 0, 0, 3, 231, 1])][number % 4])
producer.flush(60)

# COMMAND ----------

ticks = spark.readStream.format("rate").option("rowsPerSecond", 40).load()
counts = ticks.withWatermark("timestamp", "10 seconds").groupBy("timestamp").count()
counts.writeStream.format("noop").queryName("ticks").trigger(processingTime="2 seconds").start()
wrong = ticks.selectExpr("raise_error('the column amount is no number') AS x")
wrong.writeStream.format("noop").queryName("invoices").start()

# COMMAND ----------

tl.mount(dbutils, gps.storage, spark)
query = tl.start_ingest(spark, gps)
while True:
    publish_tracks(gps, {str(PROJECT / "data" / "gps_tracks.csv")!r}, devices=3, records_per_second=300)
"""


@click.command()
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), default=Path(__file__).parent)
def main(to: Path) -> None:
    """Take the pictures."""
    addresses: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        streams(Home(Path(folder) / "home", PROJECT)) as home,
        dashboard_during(home, addresses.append, "{}"),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        take(browser, addresses[0], to)
        browser.close()


@contextmanager
def streams(home: Home) -> Iterator[Home]:
    """Run services and a notebook with three streams."""
    home.prepare()
    services.up(home, click.echo)
    notebook = home.folder / "streams.py"
    # Looked for above the notebook.
    shutil.copytree(PROJECT / "conf", home.folder / "conf")
    notebook.write_text(NOTEBOOK)
    run = subprocess.Popen(
        [sys.executable, "-m", "workbench", "run", str(notebook)],
        cwd=PROJECT,
        env=os.environ | {"WORKBENCH_HOME": str(home.folder)},
    )
    try:
        yield home
    finally:
        processes.stop([*Process(run.pid).children(recursive=True), Process(run.pid)])
        services.down(home, click.echo)


def take(browser: Browser, address: str, to: Path) -> None:
    """Wait until the streams have something to show, and take the pictures."""
    to.mkdir(parents=True, exist_ok=True)
    page = browser.new_page(viewport={"width": 1280, "height": 330}, color_scheme="light")
    page.goto(address)
    gps = page.locator("#queries tbody tr", has=page.get_by_role("link", name="gps", exact=True))
    expect(gps.locator("[data-label='quarantined']")).to_have_text("40", timeout=SECONDS * 1000)
    expect(page.locator("#queries tbody tr.failed")).to_be_visible(timeout=SECONDS * 1000)
    page.wait_for_timeout(10_000)
    picture(page, to / "dashboard.png")
    page.emulate_media(color_scheme="dark")
    gps.get_by_role("link").click()
    expect(page.locator("#rates canvas")).to_be_visible()
    page.wait_for_timeout(10_000)
    picture(page, to / "dashboard_query.png")
    page.emulate_media(color_scheme="light")
    page.get_by_role("link", name="bad_magic").click()
    expect(page.get_by_text("not Avro at all").first).to_be_visible(timeout=SECONDS * 1000)
    page.set_viewport_size({"width": 1280, "height": 900})
    page.screenshot(path=to / "dashboard_reason.png")


def picture(page: Page, file: Path) -> None:
    """Take one picture of all that the page holds."""
    page.screenshot(path=file, full_page=True)
    click.echo(f"{file}: {file.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
