"""The page and its twins: whole, self-contained, the same numbers, the same bytes."""

import csv
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FIGURES = {
    "interaction",
    "noise-figure",
    "validation-ce",
    "training-loss",
    "boundary-rms",
    "token-types",
    "rms-distribution",
    "block-removal",
}
VOID = {"meta", "br", "hr", "img", "link", "col", "input", "wbr"}


class Checker(HTMLParser):
    """Tag balance, what the page would fetch, ids, and the roles of figures."""

    def __init__(self):
        super().__init__()
        self.open, self.links, self.ids, self.images = [], [], [], []
        self.tags = set()

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        found = dict(attrs)
        self.tags.add(tag)
        self.links += [found[key] for key in ("src", "href", "xlink:href", "srcset", "data") if key in found]
        self.ids += [found["id"]] if "id" in found else []
        self.images += [found.get("aria-label")] if found.get("role") == "img" else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_fetches_nothing(four, tmp_path, built):
    _, page = built(four.values(), tmp_path / "out")
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == [] and not {"script", "link", "iframe", "img"} & checker.tags
    assert len(checker.ids) == len(set(checker.ids))
    outside = [link for link in checker.links if not link.startswith("#")]
    assert all((tmp_path / "out" / link).is_file() for link in outside)
    assert all(link[1:] in checker.ids for link in checker.links if link.startswith("#"))
    assert "url(http" not in page and "@import" not in page
    assert len(checker.images) == len(FIGURES) and all(len(alt) > 60 for alt in checker.images)
    assert page.count("<svg") == len(FIGURES) and set(checker.ids) >= FIGURES
    assert {f"table-{name}" for name in ("1", "2", "3", "4", "a1", "a3", "a4")} | {"noise", "budgets", "phases", "runs"} <= set(checker.ids)


def csv_rows(path):
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines))[1:]


def test_twins_carry_the_same_numbers(four, tmp_path, undrawn, built):
    report, page = built(four.values(), tmp_path / "out")
    text = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    for table in report.tables:
        for texts, row in zip(table.texts(), csv_rows(tmp_path / f"out/{table.slug}.csv"), strict=True):
            for column, shown, raw in zip(table.columns, texts, row, strict=True):
                in_page = shown.replace("-", "\N{MINUS SIGN}") if column.spec and shown[:1] in "+-" else shown
                assert shown in text and in_page in page
                assert shown == raw or format(float(raw), column.spec.replace("d", ".0f")) == shown


def test_the_same_runs_give_the_same_bytes(four, tmp_path, built):
    for out in ("a", "b"):
        built(four.values(), tmp_path / out)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert {"index.html", "report.md", "table-1.csv", "validation-ce.png", "training-loss.png"} <= set(names)
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)


@pytest.mark.parametrize("module", ["tables", "build"])
def test_importing_loads_neither_matplotlib_nor_torch(module):
    check = f"import sys, pipeline.report.{module}; print([m for m in ('matplotlib', 'torch', 'jinja2', 'numpy') if m in sys.modules])"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", check], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


MEASURE = """<iframe id="page" src="{page}" style="border:0; width:{width}px; height:3000px"></iframe><pre id="found"></pre><script>
const frame = document.getElementById("page");
frame.onload = () => {{
  const d = frame.contentDocument, box = e => e.getBoundingClientRect();
  const drawn = e => box(e.querySelector("svg")).width > 300 && box(e.querySelector("figcaption")).height > 10;
  document.getElementById("found").textContent = JSON.stringify({{
    width: d.documentElement.clientWidth, needs: d.documentElement.scrollWidth,
    figures: [...d.querySelectorAll("figure")].filter(drawn).map(e => e.id),
    cut: [...d.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.parentElement.id),
    outside: [...d.querySelectorAll("main > *, header > *")].filter(e => box(e).right > {width} + 1).length,
  }});
}};
</script>"""


def in_browser(page, width, folder):
    """What a browser of `width` pixels makes of the page, and what it has to say of it. REPORT_SCREENSHOTS names a folder for pictures."""
    harness = folder / f"{width}.html"
    harness.write_text(MEASURE.format(page=page.as_uri(), width=width), encoding="utf-8")
    shot = Path(os.environ.get("REPORT_SCREENSHOTS", folder)) / f"report-{width}.png"
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--hide-scrollbars"]
        view = [f"--user-data-dir={profile}", f"--window-size={width + 40},3100", "--allow-file-access-from-files", f"--screenshot={shot}"]
        asked = [CHROMIUM, *flags, *view, "--enable-logging=stderr", "--dump-dom", "--virtual-time-budget=5000", harness.as_uri()]
        done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout)
    assert found and found[1], done.stderr
    return json.loads(html.unescape(found[1])), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: the page was not rendered")
def test_the_page_stands_in_a_browser_wide_and_narrow(four, tmp_path, built):
    """Every figure drawn with its caption, nothing said on the console, no table cut on a wide screen, no sideways scroll on a phone."""
    report, _ = built(four.values(), tmp_path / "out")
    for width in (1400, 390):
        found, said = in_browser(report.page, width, tmp_path)
        assert found["width"] == width and found["needs"] <= width and found["outside"] == 0
        assert set(found["figures"]) == FIGURES and said == []
        assert (found["cut"] == []) == (width == 1400)  # a phone scrolls wide tables within themselves
