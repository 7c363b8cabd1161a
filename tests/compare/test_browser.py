"""The page in a real browser: no error, no request, figures drawn, tables sorted and filtered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedsynth.compare import compare_runs

pytestmark = pytest.mark.slow

#: Appended to a copy of the page: acts like a reader once the figures are drawn, and writes what came of it.
PROBE = """
<script>
  const column = (index) => Array.from(
    document.querySelectorAll("#headline tbody tr:not([hidden])"), (row) => row.cells[index].innerText.split("\\n")[0]);
  const report = {};
  const heads = document.querySelectorAll("#headline thead th");
  const wait = setInterval(() => {
    if (document.documentElement.dataset.ready !== "true") return;
    clearInterval(wait);
    const last = heads.length - 1;
    report.before = column(last);
    heads[last].querySelector("button").click();
    report.once = column(last);
    report.order = heads[last].getAttribute("aria-sort");
    heads[last].querySelector("button").click();
    report.twice = column(last);
    heads[0].querySelector("button").click();
    report.names = column(0);
    report.other = heads[last].getAttribute("aria-sort");
    document.getElementById("filter").value = "tstr auroc";
    document.getElementById("filter").dispatchEvent(new Event("input"));
    report.filtered = column(0);
    report.count = document.getElementById("count").textContent;
    const select = document.querySelector("select[data-figure]");
    select.value = "1";
    select.dispatchEvent(new Event("change"));
    setTimeout(() => {
      report.axis = document.querySelector(`#plot-${select.dataset.figure} .ytitle`).textContent;
      report.choice = select.selectedOptions[0].textContent;
      report.requests = performance.getEntriesByType("resource").map((entry) => entry.name);
      const note = document.createElement("pre");
      note.id = "report";
      note.textContent = JSON.stringify(report);
      document.body.append(note);
    }, 500);
  }, 50);
</script>
"""


def plots(dom: str) -> dict[str, bool]:
    """Figure → whether plotly drew into it."""
    parts = re.split(r'<div class="plot[^"]*" id="plot-', dom)[1:]
    return {part.partition('"')[0]: 'class="main-svg"' in part for part in parts}


@pytest.fixture
def page(lab, tmp_path) -> Path:
    runs = [
        lab.run(seed, run_id=f"{epsilon}-{seed}", epsilon=epsilon, shift=epsilon / 100)
        for epsilon in (1.0, 4.0)
        for seed in (42, 43)
    ]
    return compare_runs(runs, tmp_path / "page.html").page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_figure_is_drawn_without_an_error(browser, page, dark):
    visit = browser.visit(page, dark=dark)
    assert visit.console == []
    assert 'data-ready="true"' in visit.dom
    assert plots(visit.dom) == {"sweep": True, "privacy_utility": True, "learning": True, "clients": True}
    light_blue, dark_blue = "rgb(0, 114, 178)", "rgb(88, 174, 230)"
    assert (
        (dark_blue if dark else light_blue) in visit.dom,
        (light_blue if dark else dark_blue) in visit.dom,
    ) == (
        True,
        False,
    )


def test_an_error_on_the_page_would_be_seen(browser, page):
    broken = page.with_name("broken.html")
    broken.write_text(page.read_text().replace("</body>", "<script>nothing.here();</script></body>"))
    assert any("nothing is not defined" in line for line in browser.visit(broken).console)


def test_a_request_to_anywhere_would_be_seen(browser, page):
    greedy = page.with_name("greedy.html")
    greedy.write_text(page.read_text().replace("</body>", '<img src="https://example.org/x.png"></body>'))
    assert any("Content Security Policy" in line for line in browser.visit(greedy).console)


def test_reader_can_sort_filter_and_choose(browser, page):
    import json

    probed = page.with_name("probed.html")
    probed.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    visit = browser.visit(probed)
    assert visit.console == []
    (text,) = re.findall(r'<pre id="report">(.*?)</pre>', visit.dom, flags=re.DOTALL)
    report = json.loads(text)

    def numbers(name):
        return [float(cell.replace("−", "-").replace("+", "").split()[0]) for cell in report[name]]

    assert numbers("before") != sorted(numbers("before"), reverse=True)
    assert numbers("once") == sorted(numbers("before"), reverse=True)
    assert report["order"] == "descending"
    assert numbers("twice") == sorted(numbers("before"))
    assert report["names"] == sorted(report["names"], key=str.lower)
    assert report["other"] is None
    assert report["filtered"]
    assert all(name.startswith("TSTR") for name in report["filtered"])
    assert report["count"].startswith(f"{len(report['filtered'])} of ")
    assert report["axis"] == report["choice"]
    assert report["requests"] == []


def test_a_link_can_carry_the_order_and_the_filter(browser, page):
    dom = browser.visit(page, fragment="#sort=headline,3,ascending").dom
    head = re.search(r'<table id="headline".*?</thead>', dom, flags=re.DOTALL)[0]
    assert re.findall(r'aria-sort="(\w+)"', head) == ["ascending"]
    filtered = browser.visit(page, fragment="#filter=nothing-like-this")
    assert filtered.console == []
    assert ">0 of " in filtered.dom


def test_simulated_data_is_written_across_every_figure(browser, lab, tmp_path):
    visit = browser.visit(compare_runs([lab.run(42, simulated=True)], tmp_path / "page.html").page)
    assert visit.console == []
    drawn = plots(visit.dom)
    assert len(re.findall(r"<text[^>]*>SIMULATED</text>", visit.dom)) == len(drawn) == sum(drawn.values())


def test_a_page_without_numbers_has_no_error_either(browser, lab, tmp_path):
    run = lab.run(42, keep=("clients",), finished=False)
    visit = browser.visit(compare_runs([run], tmp_path / "page.html").page)
    assert visit.console == []
    assert 'data-ready="true"' in visit.dom
