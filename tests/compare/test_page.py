"""The page says what was compared, escapes what it is given, and needs nothing from outside."""

from __future__ import annotations

import json
import re

import pytest

from fedsynth.compare import compare_runs, page
from fedsynth.compare.build import default_page
from fedsynth.compare.markup import Cell, Column, table
from fedsynth.errors import ArtifactError, ConfigError


def without_plotly(text: str) -> str:
    from plotly.offline import get_plotlyjs

    return text.replace(get_plotlyjs(), "")


@pytest.fixture
def write(tmp_path):
    def inner(runs, **more) -> str:
        target = tmp_path / "compare" / "page.html"
        compare_runs(runs, target, **more)
        return without_plotly(target.read_text())

    return inner


def test_nothing_is_loaded_from_outside_and_the_browser_is_told_so(lab, write):
    text = write([lab.run(42), lab.run(43)])
    assert not re.search(r"""(src|href)\s*=\s*["']?\s*(https?:)?//""", text)
    assert "default-src 'none'" in text
    assert "@import" not in text


def test_page_stays_below_eight_megabytes(lab, tmp_path):
    target = tmp_path / "page.html"
    compare_runs([lab.run(42)], target)
    assert 4_000_000 < target.stat().st_size < 8_000_000


def test_too_many_numbers_are_left_out_with_a_word(lab, write, monkeypatch):
    assert 'id="all-tstr_real"' in write([lab.run(42)])
    monkeypatch.setattr(page, "MAX_BYTES", 1000)
    text = write([lab.run(43)])
    assert 'id="all-tstr_real"' not in text
    assert "Left out to keep this page below" in text


def test_text_from_runs_is_escaped(lab, write):
    def poison(manifests):
        manifests["clients"]["uncovered"] = ["</script><script>alert(1)</script>"]
        manifests["fusion_encoder"]["metrics"][0]["arm"] = "<img src=x>"

    text = write([lab.run(42, edit=poison, command="train '<b>'")], remarks=["<i>left out</i>"])
    for raw in ("<script>alert", "<img", "<b>'", "<i>left"):
        assert raw not in text
    assert "&lt;img src=x&gt;" in text
    assert "FedAvg updates &lt;of every client&gt;" in text


def test_embedded_data_is_json_that_cannot_end_its_element(lab, write):
    def poison(manifests):
        manifests["fusion_encoder"]["metrics"][0]["arm"] = "</script>"

    text = write([lab.run(42, edit=poison), lab.run(42, epsilon=1.0, edit=poison)])
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    assert "</script>" in json.dumps(json.loads(block)["figures"])


def test_simulated_data_is_marked_everywhere(lab, write):
    text = write([lab.run(42, simulated=True), lab.run(42, epsilon=1.0)])
    assert "<title>SIMULATED — " in text
    assert '<div class="simulated"' in text
    assert '"simulated":true' in text
    head = re.search(r'<table id="headline".*?</thead>', text, flags=re.DOTALL)
    assert head[0].count("SIMULATED epsilon\N{NO-BREAK SPACE}=") == 1
    real = write([lab.run(43)])
    assert "SIMULATED DATA" not in real
    assert '"simulated":false' in real


def test_settings_table_holds_only_what_differs(lab, write):
    runs = [lab.run(42, run_id=str(n), settings={"data.num_clients": n}) for n in (5, 20)]
    section = re.search(r'<section id="differences".*?</section>', write(runs), flags=re.DOTALL)[0]
    assert "data.num_clients" in section
    assert "also stages.clients.num_clients" in section
    assert "dirichlet_alpha" not in section
    assert "No setting differs but the seed" in write([lab.run(42), lab.run(43)])


def test_links_lead_from_the_page_to_what_is_there(lab, write, tmp_path):
    run = lab.run(42)
    text = write([run])
    assert "report.html" not in text
    (run.path / "report.html").write_text("x")
    text = write([run])
    targets = re.findall(r'href="([^"#][^"]*)"', text)
    assert any(target.endswith("report.html") for target in targets)
    assert len(targets) == 2 + len(run.stages)
    assert all((tmp_path / "compare" / target).exists() for target in targets)


def test_ledger_says_what_each_budget_covers(lab, write):
    text = write([lab.run(42, epsilon=1.0), lab.run(42, epsilon=4.0)])
    ledger = re.search(r'<table id="ledger".*?</table>', text, flags=re.DOTALL)[0]
    assert ledger.count(">clipped shard means<") == 2
    assert ledger.index('data-v="1.0"') < ledger.index('data-v="4.0"')
    uncovered = re.search(r'<table id="uncovered".*?</table>', text, flags=re.DOTALL)[0]
    assert ">all<" in uncovered
    assert uncovered.count("FedAvg updates") == 1


def test_without_ledger_there_is_no_guarantee(lab, write):
    assert "No privacy guarantee" in write([lab.run(42, keep=("clients",))])


def test_run_without_numbers_still_has_a_page(lab, write):
    text = write([lab.run(42, keep=("clients",), finished=False)])
    assert "No stage that measures anything" in text
    assert "missing: fusion_encoder, encode" in text


def test_page_is_the_same_when_written_again(lab, tmp_path):
    runs = [lab.run(42), lab.run(43)]
    first = compare_runs(runs, tmp_path / "page.html").page.read_bytes()
    assert compare_runs(runs[::-1], tmp_path / "page.html").page.read_bytes() == first


def test_page_must_be_an_html_file(lab, tmp_path):
    with pytest.raises(ConfigError, match=r"ends in \.html"):
        compare_runs([lab.run(42)], tmp_path / "page.pdf")


def test_a_place_that_cannot_be_written_is_explained(lab, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match="cannot be written"):
        compare_runs([lab.run(42)], tmp_path / "file" / "page.html")


def test_default_page_names_the_experiments(lab):
    runs = [lab.run(42, experiment="a/b"), lab.run(42, experiment="c")]
    assert default_page(lab.log_dir, runs) == lab.log_dir / "compare" / "a-b_c.html"


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="2 cells for 1 columns"):
        table("x", "x", [Column.text("a")], [[Cell.text(1), Cell.text(2)]])


def test_two_groups_have_their_difference_beside_them(lab, write):
    text = write([lab.run(42, epsilon=1.0), lab.run(42, epsilon=4.0, shift=0.125)])
    assert "B − A" in text
    assert "+0.1250" in text
