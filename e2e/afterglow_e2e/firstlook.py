"""Looks at the dashboard of a server once, as a person does who has just installed it.

python -m afterglow_e2e.firstlook URL [SCREENSHOT]      prints what the page shows, as JSON
"""

import json
import sys

from .browser import Browser
from .process import poll

READY = "return document.querySelectorAll('.tile').length > 5"
SHOWN = """
const text = (selector) => document.querySelector(selector)?.textContent;
const rows = document.querySelectorAll('[data-front-end=memcache] [data-row]');
return {
  title: document.title,
  status: text('#status'),
  requests: Object.fromEntries([...rows].map((row) => [row.dataset.row,
    row.children[1].textContent])),
  tiles: [...document.querySelectorAll('.tile')].map((tile) => tile.dataset.tile),
};
"""


def main():
    with Browser() as browser:
        browser.screen(1280, 900)
        browser.open(sys.argv[1])
        poll("the page to show figures", lambda: browser.run(READY), 60)
        seen = browser.run(SHOWN)
        seen["console"] = [line["message"] for line in browser.console()]
        seen["hosts"] = sorted(browser.hosts())
        if len(sys.argv) > 2:
            browser.screenshot(sys.argv[2])
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
