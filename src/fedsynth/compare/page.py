"""One self-contained HTML page: styles, script, plotly and all numbers inside; no network, no server.

A content security policy forbids the page to load anything from anywhere, so that "self-contained" is enforced by
the browser and not only promised.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from fedsynth.compare.figures import InteractiveFigure
from fedsynth.compare.groups import Grouping
from fedsynth.compare.markup import escape
from fedsynth.compare.results import Results
from fedsynth.compare.sections import (
    full_results,
    groups_section,
    ledger_section,
    results_table,
    runs_section,
    settings_section,
)

#: A page above this is hard to mail and slow to open; plotly alone is 4.8 MB.
MAX_BYTES = 8_000_000
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def render_page(
    grouping: Grouping,
    results: Results,
    figures: Sequence[InteractiveFigure],
    remarks: Sequence[str],
    page: Path,
) -> str:
    """The page as text.

    Args:
        grouping: What is compared.
        results: Its numbers.
        figures: To draw, in this order.
        remarks: On what was left out; shown at the top.
        page: Where it will be written: links are relative to it.

    The expanders with all numbers are left out, with a remark, when they would make it larger than ``MAX_BYTES``.
    """
    text = _render(grouping, results, figures, remarks, page, full_results(results, grouping))
    if len(text.encode()) <= MAX_BYTES:
        return text
    note = "<p class=mark>Left out to keep this page below 8 MB. Compare fewer runs, or see the runs' own reports.</p>"
    return _render(grouping, results, figures, remarks, page, note)


def _render(
    grouping: Grouping,
    results: Results,
    figures: Sequence[InteractiveFigure],
    remarks: Sequence[str],
    page: Path,
    everything: str,
) -> str:
    names = list(dict.fromkeys(group.experiment for group in grouping.groups))
    experiments = ", ".join(names) if len(names) <= 3 else f"{len(names)} experiments"
    title = ("SIMULATED — " if grouping.is_simulated else "") + f"Comparison: {experiments}"
    sections = [
        ("groups", "Groups", _groups(grouping, remarks)),
        ("results", "Results", _results(grouping, results, everything)),
        *((figure.name, figure.title, _figure(figure)) for figure in figures),
        ("differences", "Settings that differ", settings_section(grouping)),
        ("privacy", "Privacy ledger", ledger_section(grouping)),
        ("artifacts", "Runs and artifacts", runs_section(grouping, page)),
    ]
    navigation = "".join(f'<a href="#{name}">{escape(heading)}</a>' for name, heading, _ in sections)
    body = "".join(
        f'<section id="{name}" aria-labelledby="h-{name}"><h2 id="h-{name}">{escape(heading)}</h2>{content}</section>\n'
        for name, heading, content in sections
    )
    banner = '<div class="simulated" role="note">SIMULATED DATA</div>' if grouping.is_simulated else ""
    count = f"{len(grouping.runs)} run{'s' * (len(grouping.runs) > 1)} in {len(grouping.groups)} group"
    data = {
        "simulated": grouping.is_simulated,
        "figures": {figure.name: [choice.to_dict() for choice in figure.choices] for figure in figures},
    }
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{_asset('page.css')}</style>\n</head>\n<body>\n{banner}"
        f'<header><h1>{escape(title)}</h1><p class="quiet">{count}{"s" * (len(grouping.groups) > 1)}</p>'
        f'<nav aria-label="Sections">{navigation}</nav></header>\n<main>\n'
        "<noscript><p class=mark>Figures and sorting need JavaScript; all tables are complete without.</p></noscript>"
        f"{body}</main>\n"
        f'<script type="application/json" id="data">{_json(data)}</script>\n'
        f"<script>{_plotly()}</script>\n<script>{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _groups(grouping: Grouping, remarks: Sequence[str]) -> str:
    text = (
        "Runs that differ in nothing but the seed are averaged; other settings, data or code make another group. ±:"
        " sample SD over runs (ddof = 1); [ ]: 95 % Student interval of the mean."
    )
    listed = "".join(f"<li>{escape(remark)}</li>" for remark in remarks)
    notes = f"<details open><summary>Left out</summary><ul>{listed}</ul></details>" if listed else ""
    return f"<p>{escape(text)}</p>{groups_section(grouping)}{notes}"


def _results(grouping: Grouping, results: Results, everything: str) -> str:
    if not results.rows:
        return "<p>No stage that measures anything has been run yet.</p>"
    metrics = dict.fromkeys(row.metric_title for row in results.headline)
    options = "".join(f"<option>{escape(metric)}</option>" for metric in metrics)
    note = "SIMULATED data. " if grouping.is_simulated else ""
    return (
        '<div class="controls"><label>Filter <input type="search" id="filter" placeholder="words, e.g. diffusion auroc"'
        ' autocomplete="off"></label><label>Metric <select id="metric"><option value="">all</option>'
        f'{options}</select></label><output id="count" aria-live="polite"></output></div>'
        + results_table(
            "headline",
            f"{note}Headline numbers on real test records and of the audits",
            results.headline,
            grouping,
        )
        + f'<h3>All numbers</h3><div id="everything">{everything}</div>'
    )


def _figure(figure: InteractiveFigure) -> str:
    options = "".join(
        f'<option value="{index}">{escape(choice.label)}</option>'
        for index, choice in enumerate(figure.choices)
    )
    select = (
        f'<label>Show <select data-figure="{figure.name}">{options}</select></label>'
        if len(figure.choices) > 1
        else f"<p class=quiet>{escape(figure.choices[0].label)}</p>"
    )
    return (
        f'<div class="controls">{select}</div><figure><div class="plot" id="plot-{figure.name}" role="img"'
        f' aria-label="{escape(figure.title)}"></div><figcaption>{escape(figure.caption)}</figcaption></figure>'
    )


def _json(value: object) -> str:
    """JSON that may stand inside a script element: no ``</script>`` can occur in it."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _asset(name: str) -> str:
    return files("fedsynth.compare").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
