"""The HTML page: contents that lead to every section, long parts folded, nothing lost or interpreted."""

from __future__ import annotations

import re

from fedsynth.report.html import render_html

TEXT = """# Title

## First

before

## Stages

| a |
| --- |
| 1 |

## All metrics

### one

text one

### two <b>

text two

## Last & end

after
"""


def page(markdown: str) -> str:
    return render_html(markdown, title="t", images={}, simulated=False)


def test_contents_link_every_section_once() -> None:
    html = page(TEXT)
    targets = re.findall(r'<a href="#([^"]+)">', html)
    assert targets == re.findall(r'<h2 id="([^"]+)">', html)
    assert len(set(targets)) == 4


def test_headings_that_read_alike_have_different_targets() -> None:
    targets = re.findall(r'<h2 id="([^"]+)">', page("# t\n\n## Same\n\n## Same\n\n## ∞\n"))
    assert len(set(targets)) == 3


def test_looked_up_parts_are_folded_and_the_rest_is_not() -> None:
    html = page(TEXT)
    assert html.count("<details>") == html.count("</details>") == 3
    folded = re.findall(r"<details>(.*?)</details>", html, re.S)
    assert ["<table>" in folded[0], "text one" in folded[1], "text two" in folded[2]] == [True] * 3
    assert "before" not in "".join(folded)
    assert "after" not in "".join(folded)
    assert "<summary>two &lt;b&gt;</summary>" in html


def test_a_folded_section_at_the_end_is_closed() -> None:
    html = page("# t\n\n## All metrics\n\n### a\n\nx\n")
    assert html.count("<details>") == html.count("</details>") == 1
    assert html.index("</details>") < html.index("</body>")


def test_a_page_without_sections_has_no_contents() -> None:
    assert "<nav>" not in page("# only a title\n\ntext")
