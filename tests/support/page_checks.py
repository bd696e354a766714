"""What the tests of the report's page and of the live view share."""

import time

# Names that would run or destroy something if a page did not escape them.
HOSTILE_NAMES = [
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "\"'`${alert(1)}&lt;b&gt;",
    "line\u2028separator\u2029",
    "\u202eright to left\u2066",
    "javascript:alert(1)",
    "__proto__",
    "n" * 10_000,
    "." * 3000,
    "tab\tnewline\nescape\x1b[31m",
]

# The texts of what is wider than the window.
_WIDE = """
    return [...document.querySelectorAll('h1, h2, p, .cell, button, input, th, td, dd')]
      .filter((e) => e.getClientRects().length && !e.closest('.scroll, nav'))
      .filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
      .map((e) => e.textContent)"""

# The texts whose contrast with their background is less than that of WCAG AA (4.5).
_LOW_CONTRAST = """
    const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const rgb = (color) => {
      context.clearRect(0, 0, 1, 1);
      context.fillStyle = color;
      context.fillRect(0, 0, 1, 1);
      return [...context.getImageData(0, 0, 1, 1).data];
    };
    const light = (color) => color.slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
      .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (element) => {
      for (let at = element; at; at = at.parentElement) {
        const color = rgb(getComputedStyle(at).backgroundColor);
        if (color[3] === 255) return color;
      }
      return [255, 255, 255, 255];
    };
    const hasText = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    return [...document.querySelectorAll('main *, header *')]
      .filter((e) => e.getClientRects().length && !e.disabled && hasText(e))
      .map((e) => {
        const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        return [contrast, e.textContent.slice(0, 40), e.className];
      }).filter(([contrast]) => contrast < 4.5);"""


def text_of(browser, selector):
    return browser.run("return document.querySelector(arguments[0]).innerText", selector)


def focused_label(browser):
    return browser.run("return document.activeElement.getAttribute('aria-label')")


def table_text(browser, name):
    """Opens the table that has the content of a chart, and returns its text."""
    browser.click(f"#{name} > summary")
    browser.wait_until(f"document.querySelector('#{name} tbody tr')")
    return text_of(browser, f"#{name} table")


def check_fit_and_contrast(browser):
    """Asserts that nothing is wider than the window, and that all text can be read."""
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    for _ in range(5_000):  # charts follow the size of the window a moment later
        if not (wide := browser.run(_WIDE)):
            break
        time.sleep(0.05)
    assert not wide, wide
    low = browser.run(_LOW_CONTRAST)
    assert low == [], low
