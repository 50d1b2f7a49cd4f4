#!/usr/bin/env python3
"""width_test.py SITE: in a window of 1280 pixels, no table, code or picture of SITE is cut off.

Looks at each page in headless Chromium. Exits with 77 where there is no Chromium or no site."""

import html
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

WINDOW = 1280
MARGIN = 20  # a table's frame reaches into the margin of the page
LOOK = """<html><body><pre id="found"></pre><script>
const found = [];
async function look(page) {
  const frame = document.createElement('iframe');
  frame.style = 'border: 0; height: 900px; width: WINDOWpx';
  await new Promise(loaded => {
    frame.onload = loaded;
    frame.src = 'SITE/' + page;
    document.body.appendChild(frame);
  });
  const content = frame.contentDocument.querySelector('.md-content__inner');
  const end = content.getBoundingClientRect().right + MARGIN;
  for (const part of content.querySelectorAll('pre > code, .md-typeset__scrollwrap, table, img'))
    if (part.scrollWidth > part.clientWidth + 2 || part.getBoundingClientRect().right > end)
      found.push(page + ': ' + part.tagName + ' ' + part.textContent.trim().slice(0, 60));
  frame.remove();
}
(async () => {
  for (const page of PAGES) await look(page);
  document.getElementById('found').textContent = ['looked', ...found].join('\\n');
})();
</script></body></html>"""


def cut_off(site, pages):
    """A line for each part of a page that is wider than the window shows."""
    with tempfile.TemporaryDirectory() as name:
        page = pathlib.Path(name, "look.html")
        text = LOOK.replace("SITE", site.as_uri()).replace("PAGES", json.dumps(pages))
        page.write_text(text.replace("WINDOW", str(WINDOW)).replace("MARGIN", str(MARGIN)))
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
        flags += ["--disable-web-security", f"--user-data-dir={name}/profile"]
        flags += [f"--window-size={WINDOW + 40},1000", "--virtual-time-budget=600000", "--dump-dom"]
        command = ["chromium", *flags, page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=550)
    shown = re.search(r'<pre id="found">looked\n?(.*?)</pre>', done.stdout, re.DOTALL)
    if not shown:
        sys.exit(f"Chromium did not look at the pages: {done.stderr[-1000:]}")
    return html.unescape(shown[1]).splitlines()


def main():
    site = pathlib.Path(sys.argv[1]).resolve()
    if not shutil.which("chromium") or not (site / "index.html").exists():
        print("skipped: no Chromium, or no site of ./dev docs")
        sys.exit(77)
    pages = [page.relative_to(site).as_posix() for page in sorted(site.rglob("*.html"))]
    # Pages of sources are not read in the site.
    shown = [page for page in pages if page.count("/") == 0 or page.startswith("api/")]
    found = cut_off(site, [page for page in shown if page != "404.html"])
    print("\n".join(found) or f"nothing is cut off on {len(shown)} pages")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
