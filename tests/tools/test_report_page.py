"""The page of `kv-dump report` in a headless Chromium. test_live_view.py has the same page with
more sections, and examines its width and contrast."""

import pathlib

import numpy as np
import pytest

import cairn
from page_checks import HOSTILE_NAMES, focused_label, table_text, text_of
from tool_programs import into_store, run_program


@pytest.fixture(scope="module")
def page(report_run):
    """The page of the prepared run."""
    return write_page(report_run)


def write_page(store) -> pathlib.Path:
    file = store.parent / "report.html"
    run_program("kv-dump", "report", store, "-o", file, status=0)
    return file


def open_page(browser, page):
    browser.open(page)
    assert browser.run("return document.documentElement.hasAttribute('data-ready')")
    assert browser.console() == []


def test_a_person_finds_the_facts_of_the_run(browser, page, report_run):
    open_page(browser, page)

    findings = run_program("kv-dump", "report", report_run, "--json").json()["findings"]
    shown = text_of(browser, "#findings")
    assert all(finding["title"] in shown for finding in findings)
    # What is most urgent is visible without scrolling.
    first = "return document.querySelector('.findings li')"
    assert browser.run(f"{first}.getBoundingClientRect().bottom") < 600
    assert browser.run(f"{first}.dataset.topic") == "nan"
    assert "300" in text_of(browser, "#facts")
    assert "No damage was found" in text_of(browser, "#health")
    assert "pretrained" in table_text(browser, "steps-table")


def test_every_chart_has_a_table(browser, page):
    open_page(browser, page)

    assert "replay.buffer" in table_text(browser, "bytes-table")
    changes = table_text(browser, "changes-table")
    assert "Step 310" in changes and "no change" in changes
    assert "100 % of the bytes changed" in changes
    assert "1980" in table_text(browser, "series-table")
    assert "seg" in table_text(browser, "segments-table")


def test_the_page_needs_nothing_from_outside(browser, page):
    open_page(browser, page)

    resources = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    assert browser.run(resources) == []
    browser.run("""
        const script = document.createElement('script');
        script.textContent = 'window.intruder = "script"';
        document.body.append(script);
        const image = document.createElement('img');
        image.setAttribute('onerror', 'window.intruder = "handler"');
        image.addEventListener('error', () => { window.failed = true; });
        image.src = 'data:,x';
        document.body.append(image);""")
    browser.wait_until("window.failed")
    assert browser.run("return window.intruder || null") is None
    browser.run("fetch('http://127.0.0.1:9/').catch(() => { window.refused = true; })")
    browser.wait_until("window.refused")
    assert any("Content Security Policy" in message for message in browser.console())


def test_the_treemap_works_with_the_keyboard(browser, page):
    open_page(browser, page)

    browser.run("document.querySelector('#treemap .cell[tabindex=\"0\"]').focus()")
    assert focused_label(browser).startswith("model: ")
    browser.press("Right")
    assert focused_label(browser).startswith("replay.buffer: ")
    browser.press("Left", "Enter")
    assert focused_label(browser).startswith("layers: ")
    assert text_of(browser, "#bytes-crumbs").split() == ["all", "/", "model"]
    browser.press("Enter")
    assert "unchanged since step 290" in focused_label(browser)
    browser.press("Backspace")
    assert focused_label(browser).startswith("layers: ")
    # The heat map shows the parts of the same module.
    assert "head.weight" in text_of(browser, "#heatmap")
    assert "optimizer" not in text_of(browser, "#heatmap")


def test_charts_have_a_cursor_that_is_spoken(browser, page):
    open_page(browser, page)

    browser.run("document.querySelector('#timeline canvas').focus()")
    browser.press("End")
    assert text_of(browser, "#live").startswith("Step 2990, 905 KiB in the step")
    browser.press("Left")
    assert "Step 2980" in text_of(browser, "#live")
    assert text_of(browser, "#tooltip").startswith("Step 2980")
    browser.press("+", "+")
    assert browser.run("return document.querySelector('#zoom-all').disabled") is False
    browser.press("Home")
    assert "Step 2" in text_of(browser, "#live")
    browser.press("0")
    assert browser.run("return document.querySelector('#zoom-all').disabled") is True
    browser.run("document.querySelector('#heatmap canvas').focus()")
    browser.press("Home", "Down", "End")
    assert text_of(browser, "#live").startswith("Step 2990, model.layers.0, no change")
    browser.press("Escape")
    assert browser.run("return document.querySelector('#tooltip').hidden")


def test_tensors_can_be_filtered_and_sorted(browser, page):
    open_page(browser, page)

    browser.run("document.querySelector('#filter').focus()")
    browser.press(*"layers.6.mlp")
    rows = "return [...document.querySelectorAll('#tensors tbody th')].map((th) => th.textContent)"
    down, up = "model.layers.6.mlp.down.weight", "model.layers.6.mlp.up.weight"
    assert sorted(browser.run(rows)) == [down, up]
    browser.click("#tensors thead th:nth-child(10) button")  # NaN
    assert browser.run(rows) == [up, down]
    assert browser.run("return document.querySelector('[aria-sort]').ariaSort") == "descending"


def test_the_theme_can_be_chosen(browser, page):
    open_page(browser, page)
    background = "return getComputedStyle(document.body).backgroundColor"
    light = browser.run(background)

    browser.click("#theme")
    browser.click("#theme")

    assert text_of(browser, "#theme") == "Theme: dark"
    assert browser.run(background) != light
    browser.click("#theme")
    assert browser.run(background) == light


def test_hostile_names_run_nothing(browser, tmp_path):
    state = {name: {"weight": np.full(10 + i, np.nan if i % 2 else 1, np.float32)}
             for i, name in enumerate(HOSTILE_NAMES)}  # fmt: skip
    clean = {"clean": np.ones(3, np.float32)}
    tuning = cairn.SaveTuning(statistics=True)
    page = write_page(into_store(tmp_path / "store", clean, state | clean, tuning=tuning))

    open_page(browser, page)

    assert b"<img" not in page.read_bytes() and page.read_bytes().count(b"<script") == 2
    assert browser.run("return document.querySelectorAll('img, iframe, script').length") == 2
    text = browser.run("return document.body.textContent")
    assert "</script><img src=x onerror=alert(1)>" in text
    assert "\\u{202e}right to left" in text and "\\x1b[31m" in text
    assert "\u202e" not in text and "\u2028" not in text
    for name in ("bytes-table", "changes-table", "series-table"):
        if browser.run("return document.getElementById(arguments[0]).checkVisibility()", name):
            table_text(browser, name)
    browser.resize(400)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.console() == []


def test_a_store_without_steps_or_statistics_has_a_page(browser, tmp_path):
    open_page(browser, write_page(into_store(tmp_path / "store")))
    assert "no steps yet" in text_of(browser, "#findings")

    open_page(browser, write_page(into_store(tmp_path / "store", {"a": np.ones(3)})))
    assert "not known whether there are NaN" in text_of(browser, "#findings")
