"""Several sites: every training set tested on the real images of every site, as the paper's Table 2."""

from __future__ import annotations

from fedsynth.report.pso_names import FILTERED, SYSTEMS, image_rank, image_title
from fedsynth.report.pso_systems import (
    CLASSIFIER,
    SITE_TEST,
    ImageSystem,
    image_systems,
    inputs_of,
    printed_rows,
    site_name,
    stage_config,
)
from fedsynth.report.pso_tables import percent
from fedsynth.report.section import Material, Section
from fedsynth.report.sections.pso_utility import AUROC
from fedsynth.report.tables import DASH, cell, table

ALL = "all"
#: Codecs whose decoder gives back the very image.
LOSSLESS = ("identity", "unshuffle")


def site_matrix_section(material: Material) -> Section | None:
    """AUROC of every (method, training site) on every test site; only for runs that test on several sites."""
    systems = _tested_systems(material)
    # Sites that train something, in the order of the run: numbers on the images of all of them together have no column.
    sites = {site for one in systems for site in one.origin.sites} & {one.tested for one in systems}
    tested = [name for name in material.names("xray_images") if name in sites]
    if len(tested) < 2:
        return None
    text = [
        "Rows: what a classifier is trained on and of which site; columns: the real test images of each site."
        " Macro AUROC in"
        " percent, mean ± SD. **Bold**: the training set holds images of the tested site. The union of all sites always"
        " does, so comparing it with real images of *another* site says nothing about unseen hospitals.",
        material.caption("Test site across, training set down."),
        _matrix(material, systems, tested),
        _lossless(material),
        _paper(material),
    ]
    return Section("Several sites and data sharing", "\n\n".join(part for part in text if part))


def _tested_systems(material: Material) -> list[ImageSystem]:
    """On its own site a classifier is tested by the stage that trains it, on others by stages for that."""
    found = [
        one for kind in (CLASSIFIER, SITE_TEST) for one in image_systems(material, kind, "train")
        if material.get(one.stage, one.arm, AUROC) is not None
    ]  # fmt: skip
    return sorted(found, key=lambda one: (*image_rank(one.arm), one.origin.sites))


def _matrix(material: Material, systems: list[ImageSystem], tested: list[str]) -> str:
    rows: dict[tuple[str, str], dict[str, str]] = {}
    order: dict[str, int] = {}
    for one in systems:
        title, site = one.origin.title, _trained_on(material, one)
        if one.tested in rows.get((title, site), {}):  # two sets of one origin: neither may hide the other
            title = f"{title} ({one.arm})"
        order.setdefault(title, len(order))
        record = material.get(one.stage, one.arm, AUROC)
        text = percent(record.mean, record.std) if record else DASH
        rows.setdefault((title, site), {})[one.tested] = f"**{text}**" if one.is_own_site else text
    lines, last = [], ""
    for (title, site), cells in sorted(rows.items(), key=lambda item: order[item[0][0]]):
        lines.append(
            [cell(title) if title != last else "", cell(site), *(cells.get(name, DASH) for name in tested)]
        )
        last = title
    header = ["method", "trained on", *(f"test: {site_name(material, name)}" for name in tested)]
    return table(header, lines, right=range(2, len(header)))


def _lossless(material: Material) -> str:
    """Says why two rows are equal; empty where the autoencoder loses something."""
    config = material.runs[0].config
    names = {
        str((stage_config(config, inputs_of(config, stage).get("codec", "")).get("codec") or {}).get("name"))
        for stage in material.names("vae_reconstruction")
    }
    if not names or not names <= set(LOSSLESS):
        return ""
    return (
        f"The codec of this run ({', '.join(sorted(names))}) loses nothing: reconstructions **are** the real images. "
        "`codec=small_autoencoder` has some that are not."
    )


def _trained_on(material: Material, system: ImageSystem) -> str:
    if len(system.origin.sites) > 1:
        return ALL
    return site_name(material, system.origin.sites[0])


def _paper(material: Material) -> str:
    """Table 2 as printed; nothing where the config names no paper."""
    prefix = f"{AUROC}/"
    found = {
        (arm, *metric.removeprefix(prefix).split("/")): value
        for (arm, metric), value in printed_rows(material, "Table 2").items()
        if metric.startswith(prefix)
    }
    if not found:
        return ""
    tested = list(dict.fromkeys(key[1] for key in found))
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for (arm, test, site), value in found.items():
        rows.setdefault((arm, site), {})[test] = percent(value.mean)
    lines, last = [], ""
    for (arm, site), cells in rows.items():
        title = image_title(arm) or arm
        lines.append([title if title != last else "", site, *(cells.get(name, DASH) for name in tested)])
        last = title
    text = material.caption(
        "As printed in the paper (three hospitals, 512 pixels); not comparable with other images."
    )
    note = (
        f"In the paper, every cell of {SYSTEMS['diadm_features']}, {FILTERED}, lies below real images of the same"
        " training and"
        " test site, and the union below real images of the tested site: it is ahead only of real images of other sites."
    )
    header = ["method", "trained on", *(f"test: {name}" for name in tested)]
    return "\n\n".join([text, table(header, lines, right=range(2, len(header))), note])
