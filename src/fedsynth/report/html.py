"""The Markdown report as one self-contained HTML file: images inlined, no script, no network.

Beside the Markdown it has a list of contents, and folds what is long and looked up rather than read.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

#: Sections whose parts (headings of level 3) are folded one by one, and sections folded as a whole.
FOLDED_PARTS = ("All metrics",)
FOLDED = ("Stages",)

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.55 system-ui, sans-serif; color: #1b1b1b;
  max-width: 74rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { margin-top: 2.4rem; border-bottom: 1px solid #ddd; padding-bottom: .2rem; }
table { border-collapse: collapse; margin: .6rem 0 1.2rem; font-size: .88rem;
  font-variant-numeric: tabular-nums;
  display: block; overflow-x: auto; }
th, td { padding: .3rem .65rem; border-bottom: 1px solid #e3e3e3; text-align: left; vertical-align: top; }
td:first-child { min-width: 8.5rem; }
td[style*="right"] { white-space: nowrap; }
th { background: #f4f6f8; } tbody tr:hover { background: #fafafa; }
img { max-width: 100%; height: auto; } code { font-size: .88em; background: #f4f4f4; padding: 0 .2em; }
pre { background: #f4f4f4; padding: .7rem; overflow-x: auto; } pre code { padding: 0; }
blockquote { margin: 1rem 0; padding: .5rem 1rem; border-left: 5px solid #d55e00; background: #fff4ec; }
nav ul { columns: 2; list-style: none; padding: 0; margin: 1rem 0; font-size: .92rem; }
a { color: #0b5c9e; } details { margin: .3rem 0; } summary { cursor: pointer; font-weight: 600; padding: .15rem 0; }
.simulated { background: #b00000; color: #fff; text-align: center; font-weight: 700; letter-spacing: .35em;
  padding: .4rem; position: sticky; top: 0; }
@media print { nav ul { columns: 2; list-style: none; padding: 0; margin: 1rem 0; font-size: .92rem; }
a { color: #0b5c9e; } details { margin: .3rem 0; } summary { cursor: pointer; font-weight: 600; padding: .15rem 0; }
.simulated { position: fixed; left: 0; right: 0; } }
"""


def render_html(markdown: str, *, title: str, images: Mapping[str, bytes], simulated: bool) -> str:
    """One HTML page.

    Args:
        markdown: The report; raw HTML in it is shown as text, never interpreted.
        title: Of the page.
        images: PNG bytes by the path the Markdown links them with; every linked image must be here.
        simulated: Put a SIMULATED banner over the page.

    Raises:
        KeyError: The Markdown links an image that is not in ``images``.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")

    def image(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        token = tokens[index]
        data = base64.b64encode(images[token.attrs["src"]]).decode()
        return f'<img alt="{html.escape(token.content)}" src="data:image/png;base64,{data}">'

    parser.add_render_rule("image", image)
    tokens = parser.parse(markdown)
    contents = _name_headings(tokens)
    body = parser.renderer.render(_folded(tokens), parser.options, {})
    if contents:
        entries = "".join(f'<li><a href="#{name}">{html.escape(text)}</a></li>' for name, text in contents)
        # After the title.
        body = body.replace("</h1>", f"</h1>\n<nav><ul>{entries}</ul></nav>", 1)
    banner = '<div class="simulated">SIMULATED DATA</div>\n' if simulated else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{banner}{body}</body>\n</html>\n"
    )


def _name_headings(tokens: Sequence[Token]) -> list[tuple[str, str]]:
    """Give every heading of level 2 an id, and return them as (id, text)."""
    contents: list[tuple[str, str]] = []
    for token, inline in pairwise(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            name = re.sub(r"[^a-z0-9]+", "-", inline.content.lower()).strip("-") or "section"
            name = f"{name}-{len(contents)}"  # two headings may read alike
            token.attrSet("id", name)
            contents.append((name, inline.content))
    return contents


def _folded(tokens: Sequence[Token]) -> list[Token]:
    """The tokens with ``details`` elements around what is folded."""
    found: list[Token] = []
    section, is_open, index = "", False, 0
    while index < len(tokens):
        token = tokens[index]
        if token.type == "heading_open" and token.tag in ("h2", "h3"):
            text, whole = tokens[index + 1].content, list(tokens[index : index + 3])
            index += 3
            section = text if token.tag == "h2" else section
            if is_open and (token.tag == "h2" or section in FOLDED_PARTS):
                found.append(_raw("</details>\n"))
                is_open = False
            if token.tag == "h3" and section in FOLDED_PARTS:
                found.append(_raw(f"<details><summary>{html.escape(text)}</summary>\n"))
                is_open = True
                continue
            found += whole
            if token.tag == "h2" and section in FOLDED:
                found.append(_raw("<details><summary>Show</summary>\n"))
                is_open = True
            continue
        found.append(token)
        index += 1
    return [*found, _raw("</details>\n")] if is_open else found


def _raw(content: str) -> Token:
    return Token("html_block", "", 0, content=content)
