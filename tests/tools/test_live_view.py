"""The page of `kv-dump serve` in a headless Chromium.

CAIRN_REPORT_SCREENSHOTS names a folder that receives images of the page.
"""

import os
import pathlib
import urllib.parse

import numpy as np
import pytest

import cairn
from live_server import live_server
from page_checks import HOSTILE_NAMES, check_fit_and_contrast, text_of
from tool_programs import into_store

UP = "model.layers.6.mlp.up.weight"


def open_view(browser, server, key=None):
    browser.open("about:blank")
    browser.open(server.url + (f"#key={urllib.parse.quote(key)}" if key else ""))
    assert browser.run("return document.documentElement.hasAttribute('data-ready')")
    browser.wait_until("document.querySelector('#status').classList.contains('on')")
    if key:
        browser.wait_until("document.querySelector('#key-content pre')")
    assert browser.console() == []


def fact(browser, name):
    """A fact of the key that is shown."""
    return browser.run("""
        const terms = [...document.querySelectorAll('#key-content dt')];
        const term = terms.find((term) => term.textContent === arguments[0]);
        return term ? term.nextElementSibling.textContent : null;""", name)  # fmt: skip


def test_the_live_view_is_the_report(browser, report_server):
    open_view(browser, report_server)

    findings = text_of(browser, "#findings")
    assert "NaN began at step 1830 in 2 tensors of model.layers.6.mlp" in findings
    assert text_of(browser, "#status").startswith("Step 2990, saved ")
    resources = browser.run("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert resources and all(name.startswith(report_server.url + "api/") for name in resources)


def test_a_key_is_found_with_the_keyboard(browser, report_server):
    open_view(browser, report_server)

    browser.press("/", *"Layers.6 UP")
    browser.wait_until("document.querySelectorAll('#results li').length === 1")
    assert browser.run("return document.querySelector('#search').ariaExpanded") == "true"
    assert text_of(browser, "#live") == "1 key"
    browser.press("Down")
    active = "document.querySelector('#search').getAttribute('aria-activedescendant')"
    assert browser.run(f"return document.getElementById({active}).innerText").startswith(UP)
    browser.press("Enter")
    browser.wait_until("document.querySelector('#key-content pre')")
    assert text_of(browser, "#key-name") == UP
    assert text_of(browser, "#live") == f"{UP} at step 2990"
    assert fact(browser, "Shape") == "[128, 32]" and fact(browser, "NaN") == "132"
    assert "nan" in text_of(browser, "#key-content pre")
    assert browser.run("return document.activeElement.id") == "key-title"
    browser.press("/", *"no such", "Escape")
    assert browser.run("return document.querySelector('#results').hidden")
    # Enter without waiting opens the first key with these words, not one with the words before.
    browser.run("document.querySelector('#search').select()")
    browser.press(*"layers.2 qkv", "Enter")
    name = "document.querySelector('#key-name')"
    browser.wait_until(f"{name}.innerText.includes('layers.2.attn.qkv')")


def test_the_distribution_has_a_cursor_and_a_table(browser, report_server):
    open_view(browser, report_server, UP)

    browser.run("document.querySelector('#key-content canvas').focus()")
    browser.press("Home")
    first = text_of(browser, "#live")
    assert first.startswith("-0.0") and "1 value" in first
    browser.press("Right")
    assert text_of(browser, "#live") != first
    browser.click("#key-content details summary")
    browser.wait_until("document.querySelectorAll('#key-content details tbody tr').length === 64")


def test_a_key_is_shown_at_any_step_and_slice(browser, report_server):
    open_view(browser, report_server, UP)

    browser.run("document.querySelector('#key-step').focus()")
    browser.press(*"1820", "Enter")
    browser.wait_until("document.querySelector('#key-content dd').textContent === '1820'")
    assert fact(browser, "NaN") == "0"
    browser.run("document.querySelector('#key-slice').focus()")
    browser.press(*"3,:5", "Enter")
    browser.wait_until("document.querySelector('#key-content pre').textContent.length < 90")
    browser.run("document.querySelector('#key-slice').value = '3:4:5'")
    browser.click("#key-form button")
    browser.wait_until("document.querySelector('#key-content [role=alert]')")
    assert "only a step of 1" in text_of(browser, "#key-content")

    # From the history of another key to its first version.
    browser.run("document.querySelector('#key-step').value = ''")
    browser.run("location.hash = '#key=model.wte.weight'")
    browser.wait_until("document.querySelector('#key-content pre')")
    history = "#key-content > details:last-child"
    browser.click(f"{history} summary")
    browser.wait_until(f"document.querySelectorAll('{history} tbody tr').length === 25")
    assert text_of(browser, f"{history} tbody th") == "290"
    browser.click(f"{history} tbody tr:nth-child(2) button")
    browser.wait_until("document.querySelector('#key-content dd').textContent === '280'")


def test_two_steps_are_compared(browser, report_server):
    open_view(browser, report_server)

    browser.run("document.querySelector('#compare-a').focus()")
    browser.press(*"1820", "Tab", *"1830", "Tab", *"layers.6 mlp", "Enter")
    browser.wait_until("document.querySelector('#compare-content table')")
    assert "0 added, 0 removed, 2 changed" in text_of(browser, "#compare-content p")
    assert text_of(browser, "#live").startswith("Step 1820 to 1830")
    row = "#compare-content tbody tr:nth-child(2)"
    assert text_of(browser, f"{row} th") == UP
    browser.click(f"{row} button")
    browser.wait_until(f"document.querySelector('{row}').textContent.includes('differ')")
    assert "5 NaN or Inf" in text_of(browser, row)
    browser.click(f"{row} a")
    browser.wait_until("document.querySelector('#key-content pre')")
    assert text_of(browser, "#key-name") == UP
    # Without numbers, the last two steps.
    browser.run("for (const id of ['compare-a', 'compare-b', 'compare-filter'])"
                " document.getElementById(id).value = ''")  # fmt: skip
    browser.click("#compare-form button")
    browser.wait_until("document.querySelector('#compare-content').innerText.includes('2990')")
    assert text_of(browser, "#compare-content p").startswith("Step 2980 to 2990")


def test_the_page_follows_a_running_job(browser, tmp_path):
    path = tmp_path / "store"
    weights = np.ones((64, 64), np.float32)
    with cairn.open(path, mode="a") as store, live_server(path) as server:
        def save(step):
            state = {"model": {"a": weights, "b": {"c": weights[:9] + 1, "d": weights[9:] + 1}}}
            tuning = cairn.SaveTuning(statistics=True)
            store.save(step, state, tuning=tuning, metrics={"loss": 1 / step})

        browser.open(server.url)
        browser.wait_until("document.querySelector('#status').textContent === 'No steps yet'")
        for step in range(1, 6):
            weights[step] += step
            save(step)
        browser.wait_until("document.querySelector('#facts').textContent.includes('1 to 5')")
        assert text_of(browser, "#status").startswith("Step 5, saved ")

        # What a person has chosen remains: the module, a control, a table, the focus.
        browser.run("document.querySelector('#treemap .cell').click()")
        browser.wait_until("document.querySelector('#bytes-crumbs').innerText.includes('model')")
        browser.run("""
            const select = document.querySelector('#measure');
            select.value = 'mean_shift';
            select.dispatchEvent(new Event('change'));""")
        browser.click("#bytes-table > summary")
        browser.run("document.querySelector('#bytes-crumbs button').focus()")
        save(6)
        browser.wait_until("document.querySelector('#facts').textContent.includes('1 to 6')")
        assert browser.run("return document.activeElement.textContent") == "all"
        browser.run("document.querySelector('#timeline canvas').focus()")
        browser.press("End")
        browser.run("scrollTo(0, 500); document.querySelector('#live').textContent = ''")
        crumbs = text_of(browser, "#bytes-crumbs")
        weights[7] = np.nan
        save(7)
        findings = "document.querySelector('#findings').innerText"
        browser.wait_until(f"{findings}.includes('NaN began at step 7')")
        assert text_of(browser, "#bytes-crumbs") == crumbs
        assert browser.run("return document.querySelector('#measure').value") == "mean_shift"
        assert browser.run("return document.querySelector('#bytes-table').open")
        assert browser.run("return document.activeElement.parentElement.id") == "timeline"
        assert browser.run("return scrollY") == 500
        # A screen reader does not read each step aloud.
        assert text_of(browser, "#live") == ""

        # A pause, and what was missed.
        browser.click("#follow")
        store.save(8, {"model": {"a": weights[:1]}})
        browser.run("window.before = performance.now()")
        browser.wait_until("performance.now() > window.before + 2500")
        assert "1 to 7" in text_of(browser, "#facts")
        browser.click("#follow")
        browser.wait_until("document.querySelector('#facts').textContent.includes('1 to 8')")
        assert browser.console() == []

        server.end()
        status = "document.querySelector('#status')"
        browser.wait_until(f"{status}.textContent.startsWith('Not connected')")
        assert "1 to 8" in text_of(browser, "#facts")


@pytest.mark.parametrize("width", [320, 400, 1280, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_live_view_fits_windows_and_color_schemes(browser, report_server, width, scheme):
    open_view(browser, report_server, UP)
    browser.click("#compare-form button")
    browser.wait_until("document.querySelector('#compare-content table')")
    browser.prefer(scheme)
    browser.resize(width)

    check_fit_and_contrast(browser)
    folder = os.environ.get("CAIRN_REPORT_SCREENSHOTS")
    if folder:
        browser.screenshot(pathlib.Path(folder) / f"live-{scheme}-{width}.png")


def test_screen_readers_get_landmarks_headings_and_names(browser, report_server):
    open_view(browser, report_server, UP)

    names = {}  # by role
    for node in browser.devtools("Accessibility.getFullAXTree")["nodes"]:
        if not node.get("ignored"):
            names.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value"))
    assert {"banner", "main", "navigation", "search"} <= names.keys()
    assert {"Findings", "Where the bytes are", "Steps", "What changed", "Values", "Key",
            "Compare two steps"} <= set(names["heading"])  # fmt: skip
    assert "Search keys" in names["combobox"]
    for role in ("button", "link", "combobox", "textbox", "searchbox", "application", "region",
                 "table"):  # fmt: skip
        assert names[role] and all(names[role]), (role, names[role])
    browser.open(report_server.url)
    browser.press("Tab")
    assert browser.run("return document.activeElement.textContent") == "Skip to the findings"


def test_hostile_names_run_nothing(browser, tmp_path):
    state = {name: np.full(10 + i, i, np.float32) for i, name in enumerate(HOSTILE_NAMES)}
    state["text"] = "</pre><img src=x onerror=alert(1)>"
    changed = {name: state[name] + 1 for name in HOSTILE_NAMES}
    store = into_store(tmp_path / "store", state, changed, tuning=cairn.SaveTuning(statistics=True))
    with live_server(store) as server:
        for name in state:
            open_view(browser, server)
            browser.run("document.querySelector('#key-step').value = '1'")
            browser.run("location.hash = '#key=' + encodeURIComponent(arguments[0])", name)
            browser.wait_until("document.querySelector('#key-content pre')")
            browser.click("#compare-form button")
            browser.wait_until("document.querySelector('#compare-content table')")
            browser.press("/", "o")
            browser.wait_until("!document.querySelector('#results').hidden")
            assert browser.run("return document.querySelectorAll('img, iframe').length") == 0
            shown = browser.run("return document.body.innerText")
            assert shown and "\u202e" not in shown
            assert browser.console() == [], name
        # What was injected anyway could not run, or send anything to another server.
        browser.run("""
            const script = document.createElement('script');
            script.textContent = 'window.intruder = 1';
            document.body.append(script);
            fetch('http://127.0.0.1:9/').catch(() => { window.refused = true; });""")
        browser.wait_until("window.refused")
        assert browser.run("return window.intruder || null") is None


def test_a_key_that_the_step_does_not_have_is_named(browser, report_server):
    open_view(browser, report_server)
    browser.run("location.hash = '#key=replay.buffer'")
    browser.run("document.querySelector('#key-step').value = '10'")
    browser.wait_until("document.querySelector('#key-content pre')")
    browser.click("#key-form button")
    browser.wait_until("document.querySelector('#key-content [role=alert]')")
    assert text_of(browser, "#key-name") == "replay.buffer"
    assert "no such tensor" in text_of(browser, "#key-content")


def test_ranges_of_a_narrow_distribution_differ(browser, tmp_path):
    state = {"norm": np.linspace(0.9999, 1.0001, 1000)}
    with live_server(into_store(tmp_path / "store", state)) as server:
        open_view(browser, server, "norm")
        browser.click("#key-content details summary")
        rows = "[...document.querySelectorAll('#key-content details tbody th')]"
        browser.wait_until(f"{rows}.length === 64")
        assert len(set(browser.run(f"return {rows}.map((th) => th.textContent)"))) == 64


def test_links_to_a_key_and_the_way_back(browser, report_server):
    open_view(browser, report_server, "model.wte.weight")
    assert text_of(browser, "#key-name") == "model.wte.weight"
    browser.run("document.querySelector('#filter').value = ''")
    browser.click("#tensors tbody a")
    browser.wait_until("document.querySelector('#key-name').innerText !== 'model.wte.weight'")
    browser.run("history.back()")
    browser.wait_until("document.querySelector('#key-name').innerText === 'model.wte.weight'")
