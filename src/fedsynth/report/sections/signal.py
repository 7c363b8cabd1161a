"""Where the noise drowns the signal: by budget, then client by client."""

from __future__ import annotations

from fedsynth.report.drawing import CLASS_NAMES
from fedsynth.report.section import Column, Material, Row, Section, comparison
from fedsynth.report.tables import DASH, number, table

ARM = "signal_to_noise"
METRICS = (
    Column("shard, smallest", "shard_snr_min"),
    Column("shard, median", "shard_snr_median"),
    Column("shards below 1", "shard_snr_below_one"),
    Column("client and class, smallest", "cell_snr_min"),
    Column("client and class, median", "cell_snr_median"),
    Column("below 1", "cell_snr_below_one"),
)
_CELLS = ("records", "shards", "smallest_shard")
_NUMBERS = ("noise_norm", "class_distance", "shard_snr", "cell_snr")


def signal_section(material: Material) -> Section | None:
    """Ratio of class distance to noise by budget, and by client and class for the main release."""
    rows = []
    for name in material.names("audit"):
        branch = material.branch(name)
        rows.append((branch.epsilon or 0.0 if branch else 0.0, name, branch.budget if branch else name))
    ordered = [Row(label, name, ARM) for _, name, label in sorted(rows)]
    overview = comparison(material, "release", ordered, METRICS)
    if not overview:
        return None
    parts = [
        "Distance between the class means over the length of the noise, σ√d, of one shard mean or of the mean over"
        " all shards of a client and class. Below 1 the noise is longer than the classes are apart: small clients"
        " and many shards break first, and only the average over clients carries the class.",
        material.caption("By budget, smallest and median over shards, and over clients and classes."),
        overview,
    ]
    cells = _by_cell(material, ordered)
    if cells:
        parts += [material.caption(f"Client by client, stage `{cells[0]}`.{material.first_run}"), cells[1]]
    return Section("Signal and noise", "\n\n".join(parts))


def _by_cell(material: Material, rows: list[Row]) -> tuple[str, str] | None:
    """(stage, table) of the release of the main branch, else of the first with a table."""
    names = sorted((row.stage for row in rows), key=lambda name: name != "audit")
    for name in names:
        stage = material.runs[0].stages.get(name)
        cells = (stage.notes if stage else {}).get("signal_to_noise") or []
        if not cells:
            continue
        lines = [
            [
                str(cell.get("client")),
                CLASS_NAMES[int(cell.get("label", 0))],
                *(str(cell.get(key, DASH)) for key in _CELLS),
                *("∞" if cell.get(key) is None else number(float(cell[key])) for key in _NUMBERS),
            ]
            for cell in cells
        ]
        header = [
            "client",
            "class",
            "records",
            "shards",
            "smallest shard",
            "σ√d of a shard",
            "class distance",
        ]
        header += ["ratio, shard", "ratio, all shards"]
        return name, table(header, lines, right=range(2, len(header)))
    return None
