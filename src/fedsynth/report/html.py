"""The Markdown report as one self-contained HTML file: images inlined, no script, no network."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from typing import Any

from markdown_it import MarkdownIt

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.55 system-ui, sans-serif; color: #1b1b1b;
  max-width: 66rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { margin-top: 2.4rem; border-bottom: 1px solid #ddd; padding-bottom: .2rem; }
table { border-collapse: collapse; margin: .6rem 0 1.2rem; font-size: .88rem;
  font-variant-numeric: tabular-nums;
  display: block; overflow-x: auto; }
th, td { padding: .3rem .65rem; border-bottom: 1px solid #e3e3e3; text-align: left; vertical-align: top; }
td[style*="right"], th[style*="right"] { white-space: nowrap; }
th { background: #f4f6f8; } tbody tr:hover { background: #fafafa; }
img { max-width: 100%; height: auto; } code { font-size: .88em; background: #f4f4f4; padding: 0 .2em; }
pre { background: #f4f4f4; padding: .7rem; overflow-x: auto; } pre code { padding: 0; }
blockquote { margin: 1rem 0; padding: .5rem 1rem; border-left: 5px solid #d55e00; background: #fff4ec; }
.simulated { background: #b00000; color: #fff; text-align: center; font-weight: 700; letter-spacing: .35em;
  padding: .4rem; position: sticky; top: 0; }
@media print { .simulated { position: fixed; left: 0; right: 0; } }
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
    body = parser.render(markdown)
    banner = '<div class="simulated">SIMULATED DATA</div>\n' if simulated else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{banner}{body}</body>\n</html>\n"
    )
