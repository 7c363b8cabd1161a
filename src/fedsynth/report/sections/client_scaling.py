"""The same records on more clients: how much each system loses (arms ``<system>_clients_<number>``)."""

from __future__ import annotations

from fedsynth.report.federated_figures import client_scaling
from fedsynth.report.federated_tables import System, bounds, systems, three_digits
from fedsynth.report.gallery import ReportFigure
from fedsynth.report.result_figures import Estimate
from fedsynth.report.section import Material, Section
from fedsynth.report.sections.encoders import estimate
from fedsynth.report.system_names import scaled_system, system_title
from fedsynth.report.tables import DASH, table

METRICS = {"UAR": "test/uar", "PPS": "pps", "attack AUROC": "attack_auroc"}
DRAWN = ("UAR", "PPS")


def client_scaling_section(material: Material) -> Section | None:
    """A table of systems by number of clients and metric, and a figure where a system has two numbers of clients."""
    found: dict[str, dict[int, System]] = {}
    for one in systems(material):
        scaled = scaled_system(one.arm)
        if scaled is not None and any(_estimate(material, one, metric) for metric in METRICS.values()):
            found.setdefault(scaled[0], {})[scaled[1]] = one
    if not found:
        return None
    text = [
        "The training records are dealt to more and more clients, so each holds fewer; test records, network and"
        " schedule stay the same.",
        material.caption("Systems by number of clients."),
        _table(material, found),
    ]
    panels: dict[str, dict[str, dict[int, Estimate]]] = {}
    for title in DRAWN:
        for base, by_clients in found.items():
            for clients, one in by_clients.items():
                item = _estimate(material, one, METRICS[title])
                if item is not None:
                    panels.setdefault(title, {}).setdefault(system_title(base) or base, {})[clients] = item
    figures: tuple[ReportFigure, ...] = ()
    if any(len(line) > 1 for lines in panels.values() for line in lines.values()):
        figure = client_scaling(panels, simulated=material.simulated)
        caption = "Test UAR and PPS by number of clients (logarithmic axis). Vertical lines: 95 % intervals."
        figures = (ReportFigure("client_scaling", "Number of clients", caption, figure),)
    return Section("Number of clients", "\n\n".join(text), figures)


def _estimate(material: Material, system: System, metric: str) -> Estimate | None:
    record = material.get(system.stage, system.arm, metric)
    return estimate(material, system.row, metric) if record and record.mean is not None else None


def _table(material: Material, found: dict[str, dict[int, System]]) -> str:
    header = ["system", "clients", *(text for title in METRICS for text in (title, "95 % CI"))]
    rows = []
    for base, by_clients in found.items():
        for index, clients in enumerate(sorted(by_clients)):
            one = by_clients[clients]
            row = ["" if index else system_title(base) or base, str(clients)]
            for metric in METRICS.values():
                record = material.get(one.stage, one.arm, metric)
                shown = record is not None and record.mean is not None
                row += [
                    f"**{three_digits(record.mean, record.std)}**" if record and shown else DASH,
                    bounds(record),
                ]
            rows.append(row)
    return table(header, rows, right=range(1, len(header)))
