"""Sections of PSO-secure sharing: each from files as the stages write them, left out without them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from pso_run_folder import FILTERED, SCORES, ImageFolder, finish_image_run, write_image_run, write_sites_run

from fedsynth.errors import ArtifactError
from fedsynth.report import collect_records, glossary, load_run
from fedsynth.report.build import FIGURE_NAMES, build_report
from fedsynth.report.pso_isolation import read_isolation
from fedsynth.report.pso_verdicts import read_verdicts
from fedsynth.report.section import Material
from fedsynth.report.sections.pso_cross_validation import cross_validation_section, read_folds
from fedsynth.report.sections.pso_images import by_class, image_section
from fedsynth.report.sections.pso_quality import image_quality_section
from fedsynth.report.sections.pso_reidentification import reidentification_section
from fedsynth.report.sections.pso_selection import selection_section, thresholds
from fedsynth.report.sections.pso_singling_out import singling_out_section
from fedsynth.report.sections.pso_sites import site_matrix_section
from fedsynth.report.sections.pso_utility import image_utility_section
from fedsynth.report.stored import NotRunError

SECTIONS = (
    image_utility_section, image_section, site_matrix_section, selection_section, image_quality_section,
    singling_out_section, reidentification_section, cross_validation_section,
)  # fmt: skip


def material(*folders, log_dir) -> Material:
    runs = tuple(load_run(folder, log_dir=log_dir) for folder in folders)
    return Material(runs, tuple(collect_records(runs)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Material:
    folder = tmp_path_factory.mktemp("whole")
    return material(write_image_run(folder), log_dir=folder)


@pytest.fixture(scope="module")
def built(whole) -> dict:
    """Every section of the whole run, by the function that builds it."""
    return {build: build(whole) for build in SECTIONS}


@pytest.fixture(scope="module")
def sites(tmp_path_factory) -> Material:
    folder = tmp_path_factory.mktemp("sites")
    return material(write_sites_run(folder), log_dir=folder)


def cells_of(text: str, *first: str, at: int = 0) -> list[str]:
    """A row of a table by its first cells; the ``at``-th of several."""
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return [row for row in rows if row[: len(first)] == list(first)][at]


@pytest.mark.parametrize("build", SECTIONS, ids=lambda build: build.__name__)
def test_image_sections_without_their_stages_are_left_out(build, tmp_path):
    run = ImageFolder(tmp_path, 42, simulated=False)
    run.add_images()
    assert build(material(finish_image_run(run, {}), log_dir=tmp_path)) is None


def test_utility_sets_our_auroc_and_gap_beside_the_papers(built):
    section = built[image_utility_section]
    row = cells_of(section.text, "DiADM + features, filtered")
    assert row[1] == "**94.50 ± 0.20**"
    assert row[3:6] == ["+2.00", "[+1.00, +3.00]", "0.040"]
    assert row[6:] == ["83.65", "+1.76"]
    assert cells_of(section.text, "EDM-2")[6:] == ["80.44", "+4.49"]
    assert "84.99 − 80.44 = 4.55" in section.text
    assert cells_of(section.text, "DiADM + features")[6:] == ["84.04", "+0.95"]
    assert "**Not comparable**: other images" in section.text
    (figure,) = section.figures
    axis = figure.figure.axes[0]
    assert axis.get_yticklabels()[0].get_text() == "real images"
    assert any(
        line.get_xdata()[0] == pytest.approx(SCORES["real"])
        for line in axis.lines
        if len(line.get_xdata()) == 2
    )


def test_without_a_paper_or_a_contrast_those_columns_are_absent(tmp_path):
    run = ImageFolder(tmp_path, 42, simulated=False)
    run.add_images()
    run.add_classifier("real", "images")
    text = image_utility_section(material(finish_image_run(run, {}), log_dir=tmp_path)).text
    assert "| trained on | AUROC | 95 % CI |" in text
    assert "paper" not in text


def test_simulated_images_are_said_to_reproduce_nothing(tmp_path):
    found = material(write_image_run(tmp_path, simulated=True, stages=("classifiers",)), log_dir=tmp_path)
    section = image_utility_section(found)
    assert "a simulated run reproduces nothing" in section.text
    assert "**SIMULATED.**" in section.text
    assert "SIMULATED" in [text.get_text() for text in section.figures[0].figure.texts]


def test_quality_names_the_space_and_marks_saturation(built):
    text = built[image_quality_section].text
    row = cells_of(text, "DiADM + features", "efficientnet_lite0")
    assert row[2:4] == ["**0.25**", "**0.50**"]
    assert row[5:7] == ["**0.600** ▲", "**1.500** ▲"]
    assert row[7:] == ["+1.00", "5.0", "1.58"]
    assert "▲" not in "".join(cells_of(text, "DiADM", "efficientnet_lite0"))
    index = text.splitlines().index(
        next(line for line in text.splitlines() if line.startswith("| DiADM + features |"))
    )
    second = text.splitlines()[index + 1]
    assert second.startswith("|  | pixel_pca | **10.00** |")
    assert "no FID" in text
    assert cells_of(text, "DiADM + features", "efficientnet_lite0", at=1)[2:5] == [
        "**0.75**",
        "**0.12**",
        "**0.400**",
    ]


def test_selection_tells_threshold_losses_and_classes(built):
    section = built[selection_section]
    row = cells_of(section.text, "DiADM + features, filtered")
    assert row[1:] == [
        "0.620",
        "31.0\N{NO-BREAK SPACE}%",
        "9.8\N{NO-BREAK SPACE}%",
        "27",
        "3",
        "0",
        "2",
        "1.2, 1, (0.7)",
        "**94.50 ± 0.20**",
    ]
    assert cells_of(section.text, "EDM-2, unfiltered")[1] == "—"
    # The rate asked for over all classes is no rate of a class, and pairs that chose nothing are told beside.
    tables = section.text.split("\n\n")
    (rates,) = (part for part in tables if "others flagged, test pairs" in part and part.startswith("|"))
    assert cells_of(rates, "DiADM + features, filtered", "all")[3:5] == [
        "9.8\N{NO-BREAK SPACE}%",
        "10.8\N{NO-BREAK SPACE}%",
    ]
    assert "| normal | 0.620 | 34.0\N{NO-BREAK SPACE}% | 35.0\N{NO-BREAK SPACE}% |" in rates
    assert "unfiltered" not in rates
    normal = cells_of(section.text, "DiADM + features, filtered", "normal")
    assert normal[2:] == ["10", "75.0\N{NO-BREAK SPACE}%", "50.0\N{NO-BREAK SPACE}%", "5, 2", "3", "2"]
    assert "| EDM-2, unfiltered | normal |" not in section.text  # nothing was filtered there
    (figure,) = section.figures
    assert len(figure.figure.axes) == 9 * 9
    assert "real training images" in figure.caption


def test_a_filter_that_recognizes_nobody_is_said_to_be_none(tmp_path, built):
    fault = "the identity network gives all 200 validation pairs the probability 0.5"
    run = ImageFolder(tmp_path, 42, simulated=False)
    run.add_images()
    run.add_networks()
    run.add_reidentifier(cannot_tell=True)
    run.add_selection(FILTERED, fault=fault)
    blind = material(finish_image_run(run, {}), log_dir=tmp_path)
    said = f"**The filter recognizes almost nobody (DiADM + features, filtered)**: {fault}."
    assert said in selection_section(blind).text
    assert "**`reidentifier` cannot tell pairs of one patient" in reidentification_section(blind).text
    for build in (selection_section, reidentification_section):
        assert "recognizes almost nobody" not in built[build].text


def test_thresholds_by_class_are_told_for_each():
    rows = [
        {"class": "normal", "compared_with": "own source", "threshold": 0.5, "fpr": 0.1, "fnr": 0.2},
        {"class": "virus", "compared_with": "own source", "threshold": 0.25, "fpr": 0.1, "fnr": None},
        {"class": "all", "compared_with": "any training image", "threshold": 0.9, "fpr": 0.05},
    ]
    text, missed, flagged = thresholds({"thresholds": rows})
    assert text == "normal 0.500, virus 0.250, any training image 0.900"
    assert missed == "20.0\N{NO-BREAK SPACE}%"
    assert flagged.endswith("any training image 5.0\N{NO-BREAK SPACE}%")
    assert thresholds({}) == ("—", "—", "—")


def test_verdicts_are_those_of_the_file_and_a_choice_left_out_is_not_green(whole):
    rows = read_verdicts(whole.runs[0].stages[FILTERED])
    assert [row.label for row in rows] == ["normal"] * 3 + ["bacteria"] * 3 + ["virus"] * 3
    assert rows[0].flagged.all()
    assert not rows[0].chosen.any()
    assert rows[1].chosen.tolist() == [False, False, False, True, False, False, False, False]
    assert [int(row.source[0, 0]) for row in rows] == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert all(not (row.flagged & row.chosen).any() for row in rows)
    plain = read_verdicts(whole.runs[0].stages["diadm"])
    assert all(row.probability is None for row in plain)


def test_released_images_of_a_class_are_the_first_of_it(whole):
    found = by_class(whole.runs[0].stages[FILTERED])
    assert list(found) == ["normal", "bacteria", "virus"]
    assert found["bacteria"].shape == (8, 12, 12)
    assert found["bacteria"][:, 0, 0].tolist() == [1, 4, 7, 10, 13, 16, 19, 22]


def test_image_section_shows_filtered_sets_first_and_every_network(built):
    section = built[image_section]
    assert [figure.title for figure in section.figures] == [
        "Synthetic images: DiADM + features, filtered",
        "Synthetic images: DiADM + features, unfiltered",
        "Learning curves of the image networks",
    ]
    axes = section.figures[-1].figure.axes
    assert [axis.get_title() for axis in axes] == [
        "denoiser: training loss",
        "classifiers: real validation loss",
    ]
    assert [len(axis.lines) for axis in axes] == [4, 7]
    assert "real images" in axes[1].get_legend_handles_labels()[1]


def test_singling_out_tells_tests_chance_and_controls(built):
    section = built[singling_out_section]
    space = "efficientnet_lite0"
    row = cells_of(section.text, "T1", space, "self-retrieval rate of released images")
    assert row[3] == "0.0100"
    assert row[4] == "**0.9500** ▲ [0.8882, 0.9785]"  # the reconstruction is nearly a copy
    assert row[5] == "**0.0200** [0.0055, 0.0700]"
    risk = cells_of(section.text, "T3", space, "residual risk of released images")
    assert risk[4].startswith("**0.5000** ▲")
    assert "▲" not in "".join(risk[5:])  # an interval that holds 0
    controls = section.text.split("*Controls")[1]
    assert "training images themselves" in controls
    assert "real images of other people" in controls
    assert "training images themselves" not in section.text.split("*Controls")[0].split("| test |")[1]


def test_singling_out_of_one_set_has_notes_and_no_columns_of_others(tmp_path):
    run = ImageFolder(tmp_path, 42, simulated=False)
    run.add_images()
    run.add("copy", "vae_reconstruction", {"images": "images"})
    run.add_audit("vae_reconstruction", "copy")
    section = singling_out_section(material(finish_image_run(run, {}), log_dir=tmp_path))
    row = cells_of(section.text, "T1")
    assert row[3:6] == ["**0.9500** ▲", "[0.8882, 0.9785]", "0.0100"]
    assert row[6] == "median rank 3"


def test_no_report_calls_a_set_pso_secure(built):
    for section in built.values():
        if section is not None:
            assert not re.search(r"(is|are|as|not) PSO.secure", section.text, re.IGNORECASE)


def test_curves_are_those_of_the_release_and_its_controls(whole):
    found = read_isolation(whole.runs[0].stages["audit_diadm"])
    assert list(found) == ["efficientnet_lite0"]
    curves = found["efficientnet_lite0"]
    assert curves.positive[0] == 1.0  # small balls around training images hold exactly these
    assert curves.isolating[0] == curves.negative[0] == 0.0
    assert (np.diff(curves.radius) > 0).all()


def test_reidentification_shows_rates_on_test_pairs(built):
    section = built[reidentification_section]
    assert cells_of(section.text, "reidentifier")[1:] == ["**93.00**", "[91.00, 95.00]", "0.041", "96"]
    row = cells_of(section.text, "**fpr** (configured)")
    assert row[1:5] == [
        "0.1",
        "0.620",
        "31.0\N{NO-BREAK SPACE}%",
        "[25.0\N{NO-BREAK SPACE}%, 38.0\N{NO-BREAK SPACE}%]",
    ]
    (figure,) = section.figures
    shares = [bar.get_height() for bar in figure.figure.axes[1].patches]
    assert sum(shares) == pytest.approx(1.0)


def test_cross_validation_tells_ranks_tests_and_pairs(built, whole):
    section = built[cross_validation_section]
    assert cells_of(section.text, "real images")[1] == "**1.00**"
    assert "21 of 21 pairs are distinguished" in section.text
    scores, ranks = read_folds(whole.runs[0].stages["cross_validation"])
    assert cells_of(section.text, "EDM-2")[2].startswith(f"{100 * np.mean(scores['edm2']):.2f} ± ")
    texts = [text.get_text().strip() for text in section.figures[0].figure.axes[0].texts]
    assert f"EDM-2  ({ranks['mean_ranks']['edm2']:.2f})" in texts


def test_too_few_folds_are_said_to_be_too_few(tmp_path):
    found = material(write_image_run(tmp_path, stages=("cross_validation",), num_folds=5), log_dir=tmp_path)
    section = cross_validation_section(found)
    assert "**5 folds are too few** to distinguish any of 21 pairs" in section.text
    dots = section.figures[0].figure.axes[0].collections
    assert [len(np.asarray(item.get_offsets())) for item in dots] == [7]  # one bar over all methods


def test_two_methods_have_no_test_over_all(tmp_path):
    run = ImageFolder(tmp_path, 42, simulated=False)
    run.add_cross_validation(8, ("real", "edm2"))
    section = cross_validation_section(material(finish_image_run(run, {}), log_dir=tmp_path))
    assert "no test over all of them. 1 of 1 pairs are distinguished" in section.text


def test_sites_stand_in_a_matrix_with_the_own_site_in_bold(sites):
    text = site_matrix_section(sites).text
    assert "| method | trained on | test: site 0 | test: site 1 | test: site 2 |" in text
    assert cells_of(text, "real images", "site 0")[2:] == ["**90.00 ± 0.20**", "80.00 ± 0.20", "80.00 ± 0.20"]
    assert cells_of(text, "", "site 1")[2:] == ["80.00 ± 0.20", "**90.00 ± 0.20**", "80.00 ± 0.20"]
    assert cells_of(text, "class-conditional diffusion, filtered", "site 0")[2] == "**88.00 ± 0.20**"
    assert cells_of(text, "", "site 2", at=2)[2:] == ["78.00 ± 0.20", "78.00 ± 0.20", "**88.00 ± 0.20**"]
    assert cells_of(text, "shared sets of 3 sites", "all")[2:] == ["**87.00 ± 0.20**"] * 3
    assert cells_of(text, "DiADM + features, filtered", "chestxray14")[2:] == ["83.65", "75.98", "72.57"]
    assert cells_of(text, "shared sets of all sites", "all")[2:] == ["83.83", "81.31", "77.94"]


def test_numbers_on_all_sites_together_are_in_no_column(sites):
    assert "50.00" not in site_matrix_section(sites).text


@pytest.mark.parametrize(("codec", "said"), [("unshuffle", True), ("small_autoencoder", False)])
def test_reconstructions_that_lose_nothing_are_said_to_be_the_real_images(tmp_path, codec, said):
    text = site_matrix_section(material(write_sites_run(tmp_path, codec=codec), log_dir=tmp_path)).text
    assert ("loses nothing: reconstructions **are** the real images" in text) == said


def test_several_sites_are_told_apart_in_the_table_of_utility(sites):
    text = image_utility_section(sites).text
    assert "**same real test images** of its own site" in text
    assert [cells_of(text, f"real images, site {site}")[1] for site in range(3)] == ["**90.00 ± 0.20**"] * 3
    assert [cells_of(text, f"DiADM + features, filtered, site {site}")[1] for site in range(3)] == [
        "**88.00 ± 0.20**"
    ] * 3


def test_the_headline_names_sites_and_leaves_other_sites_to_the_matrix(sites):
    shown = {
        glossary.row_title(one.stage, one.arm)
        for one in sites.records
        if glossary.is_headline(one.stage, one.arm, one.metric)
    }
    names = [
        f"{name}, site {site}" for site in range(3) for name in ("real images", "DiADM + features, filtered")
    ]
    assert shown >= {f"TSTR: {name}" for name in names}
    assert not any("_on_" in title for title in shown)


def test_one_site_has_no_matrix(built):
    assert built[site_matrix_section] is None


@pytest.mark.parametrize(
    ("stage", "file", "read"),
    [
        ("cross_validation", "folds.json", read_folds),
        ("audit_diadm", "isolation.safetensors", read_isolation),
        (FILTERED, "private/verdicts.safetensors", read_verdicts),
        (FILTERED, "images.safetensors", by_class),
    ],
)
def test_files_that_are_absent_or_damaged_are_told(tmp_path, stage, file, read):
    found = material(write_image_run(tmp_path), log_dir=tmp_path).runs[0].stages[stage]
    (found.path / file).write_text("{")
    with pytest.raises(ArtifactError, match=file):
        read(found)
    (found.path / file).unlink()
    with pytest.raises(NotRunError, match=file):
        read(found)


@pytest.mark.parametrize(
    "content", [{"scores": {}}, {"scores": {"a": [1], "b": [1]}, "ranks": {"mean_ranks": {"a": 1}}}, []]
)
def test_folds_of_another_form_are_refused(tmp_path, content):
    run = ImageFolder(tmp_path, 42, simulated=False)
    run.add("cross_validation", "cross_validation", files={"folds.json": content})
    stage = load_run(finish_image_run(run, {}), log_dir=tmp_path).stages["cross_validation"]
    with pytest.raises(ArtifactError, match=r"folds\.json"):
        read_folds(stage)


@pytest.mark.slow
def test_a_whole_report_is_written(tmp_path):
    made = build_report([write_image_run(tmp_path)], tmp_path / "report", log_dir=tmp_path)
    names = {path.stem for path in made.figures}
    assert {name for name in FIGURE_NAMES if name.startswith("pso_")} == {
        name for name in names if name.startswith("pso_")
    }
    assert made.content.left_out == ()
    assert "gap: DiADM + features, filtered" in made.markdown.read_text()
    assert json.loads(made.json.read_text())
