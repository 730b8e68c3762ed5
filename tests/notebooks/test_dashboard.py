"""The dashboard as a user has it: a real server, a real browser, queries of a real kernel."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import requests
from playwright.sync_api import expect

from tests.support.dashboards import dashboard
from tests.support.delta_logs import added, made, write_log, write_quarantine
from tests.support.environment import without_workbench
from tests.support.waiting import kill_all, wait_until
from topiclake.monitoring.lag import Lag
from topiclake.monitoring.reports import PartitionReport, read_report
from topiclake.monitoring.store import Run, Store
from topiclake.streaming.batch_counts import TableCount
from workbench.dashboard.delta_log import SMALL_FILES
from workbench.dashboard.server import REFRESH_SECONDS
from workbench.dashboard.serving import dashboard_during
from workbench.host import processes
from workbench.host.home import Home
from workbench.jobs.executor import open_store
from workbench.jobs.history import History
from workbench.jobs.owners import own_record
from workbench.jobs.run_records import NewRun
from workbench.services.query_watch import reports_file

PROJECT = Path(__file__).parents[2]
HOSTILE = "<script>alert(1)</script><b>bold"
NOTEBOOK = f"""# Databricks notebook source
def start(name, frame):
    return frame.writeStream.format("noop").queryName(name).trigger(processingTime="1 second").start()

# COMMAND ----------

rates = spark.readStream.format("rate").option("rowsPerSecond", 40).load()
lively = start({HOSTILE!r}, rates)
broken = start("broken", rates.selectExpr("raise_error('<i>' || value || ' is wrong</i>')"))

# COMMAND ----------

import time
time.sleep(1800)
"""


@pytest.fixture
def streams(tmp_path, home):
    """A run of a notebook with two streams; afterwards nothing of it runs."""
    notebook = tmp_path / "streams.py"
    notebook.write_text(NOTEBOOK)
    run = subprocess.Popen(
        [sys.executable, "-m", "workbench", "run", str(notebook)],
        cwd=PROJECT,
        env=without_workbench() | {"WORKBENCH_HOME": str(home)},
        stdout=subprocess.DEVNULL,
    )
    yield run
    kill_all(run)


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.mark.root("Debian's chromium")
def test_queries_are_shown_live_until_their_driver_is_killed_and_over_a_restart(streams, home, page):
    problems = []
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.on("pageerror", lambda error: problems.append(str(error)))
    with dashboard(home) as (server, address):
        page.goto(address)
        assert "token" not in page.url
        look_at_a_live_query(page)
        # The page is not loaded again.
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) == 0
    expect(page.locator("#connection")).to_contain_text("python -m workbench dashboard")
    with dashboard(home) as (_, again):
        assert again == address
        expect(page.locator("#connection")).to_have_text("live")
        page.get_by_role("link", name="all queries").click()
        expect(page.locator("#queries tbody tr.running th a")).to_have_text(HOSTILE)
        # The JVM, which is what runs out of memory; its kernel lives on.
        (kernel,) = psutil.Process(streams.pid).children()
        (jvm,) = [one for one in kernel.children() if one.name() == "java"]
        killed, begin = page.locator("#queries tbody tr.killed"), time.monotonic()
        jvm.kill()
        expect(killed).to_contain_text(f"process {jvm.pid}")
        # Half a second, and as much for the page; the rest is for a machine that does other things as well.
        assert time.monotonic() - begin < 15
        expect(killed.locator("th a")).to_have_text(HOSTILE)
    assert problems == []


def look_at_a_live_query(page):
    # A name and an error from outside stay text.
    lively, broken = page.locator("#queries tbody tr.running"), page.locator("#queries tbody tr.failed")
    # First: until it has failed, it runs too.
    expect(broken).to_contain_text("is wrong</i>")
    expect(lively.locator("th a")).to_have_text(HOSTILE)
    expect(lively).to_contain_text("streams")
    rates = lively.locator("[data-label='in → processed']")
    expect(rates).to_have_text(re.compile(r"[1-9]\S* → [1-9]\S* /s"))
    first = rates.text_content()
    expect(rates).not_to_have_text(first)

    # With the keyboard alone.
    lively.locator("th a").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#detail-name")).to_have_text(HOSTILE)
    expect(page.locator("#rates canvas")).to_be_visible()
    expect(page.locator("#rates")).to_have_attribute("aria-label", re.compile(r"last: in .*, processed"))
    expect(page.locator("#lag-records")).to_be_hidden()
    expect(page.locator("#phases")).to_contain_text("addBatch")
    page.set_viewport_size({"width": 380, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.set_viewport_size({"width": 1280, "height": 1000})


def test_only_who_has_the_token_and_asks_for_this_host_is_answered(home):
    with dashboard(home) as (_, address):
        assert_guarded(address)
        token = home / "data" / "dashboard.token"
        assert address.endswith(f"?token={token.read_text()}")
    for file in (token, home / "data" / "dashboard.json"):
        assert file.stat().st_mode & 0o077 == 0


def test_who_listens_for_others_is_told_and_answers_by_the_same_names(home):
    with dashboard(home, "--listen", "0.0.0.0") as (server, address):
        assert "0.0.0.0, not only for this machine" in "".join(server.stdout.readline() for _ in range(2))
        port = int(re.findall(r":(\d+)/", address)[0])
        for host, status in (("127.0.0.1", 200), ("localhost", 200), ("127.0.0.2", 403), ("0.0.0.0", 403)):
            assert requests.get(address.replace("127.0.0.1", host), timeout=60).status_code == status, host
        published = requests.get(address, headers={"Host": f"127.0.0.1:{port + 1}"}, timeout=60)
        assert published.status_code == 403


def test_one_address_that_is_listened_on_is_where_the_page_is(home):
    with dashboard(home, "--listen", "127.0.0.2") as (_, address):
        assert address.startswith("http://127.0.0.2:")
        assert requests.get(address, timeout=60).status_code == 200
        # Nobody listens there.
        with pytest.raises(requests.ConnectionError):
            requests.get(address.replace("127.0.0.2", "127.0.0.1"), timeout=60)


def assert_guarded(address):
    plain, _, token = address.partition("?token=")
    for path in ("", "events", "assets/dashboard.js", "?token=wrong", f"assets/dashboard.js?token={token}x"):
        refused = requests.get(plain + path, timeout=60)
        assert (refused.status_code, token in refused.text) == (401, False)
    scraped = requests.get(f"{plain}metrics", headers={"Authorization": f"Bearer {token}"}, timeout=60)
    assert (scraped.status_code, "# TYPE topiclake_query_state gauge" in scraped.text) == (200, True)
    assert (
        requests.get(f"{plain}metrics", headers={"Authorization": "Bearer x"}, timeout=60).status_code == 401
    )
    foreign = requests.get(address, headers={"Host": "evil.example:80"}, timeout=60)
    assert foreign.status_code == 403
    with requests.Session() as session:
        answer = session.get(address, timeout=60)
        assert answer.status_code == 200
        (cookie,) = session.cookies
        assert cookie.has_nonstandard_attr("HttpOnly")
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert session.get(f"{plain}assets/uPlot.iife.min.js", timeout=60).status_code == 200
        for outside in ("../server.py", "..%2fserver.py", "%2e%2e/server.py"):
            assert session.get(f"{plain}assets/{outside}", timeout=60).status_code in (403, 404)


def test_a_second_one_leads_to_the_first(home):
    with dashboard(home) as (first, address), dashboard(home) as (second, again):
        assert (second.wait(120), again) == (0, address)
        assert first.poll() is None
        assert requests.get(address, timeout=60).status_code == 200


def test_during_the_demo_it_opens_in_a_browser_and_ends_with_it(home, tmp_path, monkeypatch):
    opened, messages = tmp_path / "opened", []
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.new && mv {opened}.new {opened}\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    with dashboard_during(Home(home, PROJECT), messages.append, "live: {}", browser=True):
        wait_until(opened.exists)
        (address,) = (text.removeprefix("live: ") for text in messages)
        assert requests.get(address, timeout=60).status_code == 200
        doorway = Path(opened.read_text().strip().removeprefix("file://"))
        # The token is in a file of the owner's, not among a browser's arguments.
        assert address in doorway.read_text()
        assert doorway.stat().st_mode & 0o077 == 0
    with pytest.raises(requests.ConnectionError):
        requests.get(address, timeout=60)
    assert processes.marked(Home(home, PROJECT)) == []


def test_a_port_that_is_taken_is_named(home):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = subprocess.run(
            [sys.executable, "-m", "workbench", "dashboard", "--no-browser", "--port", str(port)],
            cwd=PROJECT,
            env=without_workbench() | {"WORKBENCH_HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert refused.returncode == 1
    assert f"port {port} cannot be used" in refused.stderr


def test_what_changes_is_on_the_page_well_within_5_s():
    assert REFRESH_SECONDS <= 1


@pytest.mark.root("Debian's chromium")
def test_of_a_thousand_queries_and_a_name_of_a_megabyte_the_newest_are_shown(home, page):
    store = Store(reports_file(home))
    for number in range(1000):
        store.begin(Run(f"r{number}", f"q{number}", f"name {number}", "n", 1, 0.0), float(number))
    store.begin(Run("long", "long", "x" * 1_000_000, "n", 1, 0.0), 5000.0)
    store.close()
    with dashboard(home) as (_, address):
        page.goto(address)
        expect(page.locator("#queries tbody tr")).to_have_count(200)
        expect(page.locator("#queries tbody tr").first).to_contain_text("xxx")


@pytest.mark.root("Debian's chromium")
def test_a_topic_among_five_hundred_is_found_by_a_part_of_its_name(home, page):
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    topics = [f"shop.{number:03}/{HOSTILE}" for number in range(500)]
    lags = {PartitionReport(topic, 0, 0, 9): Lag(number, 1.0) for number, topic in enumerate(topics)}
    report = read_report('{"batchId": 3, "timestamp": "2026-01-02T03:04:05Z", "sources": []}')
    store = Store(reports_file(home))
    counts = [TableCount(f"/lake/{topic}", 1) for topic in topics]
    store.add(Run("r", "q", "shop", "n", 1, 0.0), report, lags, counts, time.time())
    store.close()
    with dashboard(home) as (_, address):
        page.goto(address)
        page.locator("#queries tbody th a").click()
        listed = page.locator("#topics tbody tr")
        expect(listed).to_have_count(100)
        expect(listed.first).to_contain_text(topics[-1])
        expect(page.locator("#topics caption")).to_have_text("Topics: 100 of 500, search for others")
        box = page.get_by_label("Topics and tables with")
        box.press_sequentially("HOP.01")
        expect(listed).to_have_count(10)
        expect(page.locator("#tables tbody tr")).to_have_count(10)
        expect(page.locator("#topics caption")).to_have_text("Topics")
        expect(box).to_be_focused()
        assert in_sight(page)
        # The address of a topic; with the keyboard alone.
        page.get_by_role("link", name=topics[17], exact=True).focus()
        page.keyboard.press("Enter")
        expect(page.locator("#partitions tbody tr")).to_have_count(1)
        expect(box).to_have_value(topics[17])
        page.reload()
        expect(listed).to_have_text(re.compile(re.escape(topics[17])))
        page.go_back()
        expect(listed).to_have_count(10)
        box.fill("none of them")
        expect(listed).to_have_count(0)
        expect(box).to_be_visible()
        page.goto(f"{address.partition('?')[0]}#100%")
        expect(page.locator("#queries")).to_be_visible()
    assert problems == []


@pytest.fixture
def lake(tmp_path, home):
    """What a query has written: a table of many small files, one of few, a quarantine, one that is gone."""
    small = [added(f"{n}.parquet", 1000) for n in range(SMALL_FILES + 1)]
    many = write_log(tmp_path / "many 100% ü", [[made("WRITE", 5, numFiles=len(small)), *small]])
    few = write_log(tmp_path / "few", [[made("WRITE", 5, numFiles=1), added("0.parquet", 5_000_000)]])
    key = HOSTILE.encode()
    records = [{"offset": n, "key": key, "value": key, "detail": HOSTILE} for n in range(25)]
    quarantine = write_quarantine(tmp_path / "few_quarantine", records)
    counts = [TableCount(f"file:{path}", 1) for path in (many, few, tmp_path / "gone")]
    report = read_report('{"batchId": 3, "timestamp": "2026-01-02T03:04:05Z", "sources": []}')
    store = Store(reports_file(home))
    counts.append(TableCount(f"file:{quarantine}", 25, {"bad_magic": 20, HOSTILE: 5}))
    store.add(Run("r", "q", HOSTILE, "n", 1, 0.0), report, {}, counts, time.time())
    store.close()
    return tmp_path


def in_sight(page):
    """Whether all of the page is as wide as a phone; afterwards it is wide again."""
    page.set_viewport_size({"width": 380, "height": 800})
    fits = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.set_viewport_size({"width": 1280, "height": 1000})
    return fits


@pytest.mark.root("Debian's chromium")
def test_tables_and_reasons_have_pages_whose_texts_stay_text(lake, home, page):
    problems = []
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    with dashboard(home) as (_, address):
        for look in (look_at_tables, look_at_a_reason):
            page.goto(address)
            page.locator("#queries tbody th a").click()
            look(page, lake)
    assert problems == []


def look_at_tables(page, lake):
    expect(page.locator("#detail-name")).to_be_focused()
    tables = page.locator("#tables tbody tr")
    # Only where there are many.
    expect(page.locator("#tables .small")).to_have_text(f"{SMALL_FILES + 1} small files")
    expect(tables.filter(has_text="small files")).to_contain_text(f"file:{lake}/many 100% ü")

    # With the keyboard alone; the heading is where who listens goes on.
    page.get_by_role("link", name=f"file:{lake}/many 100% ü").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=f"file:{lake}/many 100% ü")).to_be_focused()
    facts = page.locator("#table-facts")
    expect(facts).to_contain_text("101 kB")
    expect(facts).to_contain_text("1,010")
    expect(page.locator("#table-small")).to_contain_text("101 small files, 1 kB on average")
    expect(page.locator("#table-small code")).to_have_text(f"OPTIMIZE delta.`file:{lake}/many 100% ü`")
    expect(page.locator("#files")).to_have_attribute("aria-label", "files by version; last: files 101")
    expect(page.locator("#files canvas")).to_be_visible()
    assert in_sight(page)

    page.go_back()
    expect(page.locator("#detail-name")).to_be_focused()
    page.get_by_role("link", name=f"file:{lake}/few", exact=True).click()
    expect(page.locator("#table-facts")).to_contain_text("5 MB")
    expect(page.locator("#table-small")).to_be_hidden()
    (lake / "few" / "_delta_log").rename(lake / "away")
    expect(page.locator("#table-problem")).to_contain_text("there is no Delta table any more")
    expect(page.locator("#table-problem")).to_contain_text(f"DESCRIBE DETAIL delta.`file:{lake}/few`")
    expect(page.locator("#table-read")).to_be_hidden()
    (lake / "away").rename(lake / "few" / "_delta_log")
    expect(page.locator("#table-facts")).to_be_visible()
    expect(page.locator("#table-problem")).to_be_hidden()


def look_at_a_reason(page, lake):
    page.locator("#reasons").get_by_role("link", name="bad_magic").click()
    expect(page.get_by_role("heading", name="bad_magic")).to_be_focused()
    expect(page.locator("#reason-meaning")).to_contain_text("no schema id in front")
    expect(page.locator("#course")).to_have_attribute("aria-label", re.compile("last: records 20$"))
    rows = page.locator("#records tbody tr")
    expect(rows).to_have_count(20)
    cells = rows.first.locator("td")
    assert cells.nth(1).text_content() == "0 / 24"
    assert cells.nth(4).text_content() == HOSTILE
    expect(cells.nth(5).locator("code")).to_have_text(HOSTILE)
    expect(cells.nth(6).locator("code")).to_have_text(HOSTILE)
    expect(cells.nth(6)).to_contain_text(f"0x{HOSTILE.encode().hex()}")
    assert page.locator("#records script, #records b").count() == 0
    expect(page.locator("#reason-commands code")).to_have_count(1)
    assert in_sight(page)
    # A reason of its own is text too, in the address as well.
    page.get_by_role("link", name=HOSTILE).first.click()
    page.locator("#reasons").get_by_role("link", name=HOSTILE).click()
    expect(page.locator("#reason-name")).to_have_text(HOSTILE)
    expect(page.locator("#reason-facts")).to_contain_text("5")


@pytest.mark.root("Debian's chromium")
def test_the_tab_of_jobs_links_to_notebooks_and_its_texts_stay_text(home, page):
    problems = []
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.on("pageerror", lambda error: problems.append(str(error)))
    workbench = Home(home, PROJECT)
    store = open_store(workbench)
    notebook = home / "runs" / "n.html"
    notebook.write_text(
        "<p id='seen'></p><script>document.getElementById('seen').textContent = origin</script>"
    )
    run = store.begin(NewRun(HOSTILE, "{}"))
    History(store).begin_attempt(run.id, "ingest", 2, own_record())
    History(store).end_attempt(run.id, "ingest", 2, state="SUCCESS", page=str(notebook))
    with dashboard(home) as (_, address):
        page.goto(f"{address}#jobs")
        expect(page.locator("#jobs-name")).to_be_visible()
        expect(page.locator("#overview")).to_be_hidden()
        expect(page).to_have_title("Jobs – Topiclake")
        expect(page.locator("#jobs-listed")).to_contain_text("gps_ingest")
        expect(page.locator("#jobs-runs tbody td").nth(1)).to_have_text(HOSTILE)
        expect(page.locator("#jobs-runs tbody td").nth(4)).to_have_text("RUNNING")
        store.end(run.id, "FAILED", "ingest not successful")
        expect(page.locator("#jobs-runs tbody td").nth(4)).to_have_text("FAILED")
        assert in_sight(page)
        page.get_by_role("link", name="Streams").click()
        expect(page.locator("#overview")).to_be_visible()
        # With the keyboard alone; the heading is where screen readers continue.
        page.get_by_role("link", name="Jobs").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#jobs-name")).to_be_focused()
        page.get_by_role("link", name="ingest #2 (SUCCESS)").click()
        expect(page.locator("#seen")).to_have_text("null")
        # The script of the notebook has run, and has an origin of no other page.
        assert page.url.endswith(f"/jobs/{run.id}/ingest/2")
    assert problems == []
