"""The three chest X-ray corpora, read from written copies of their layouts."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from written_sites import one_label, write_chestxray14, write_chexpert, write_csv, write_image, write_mimic

from fedsynth.data.cxr_sites import pixels
from fedsynth.data.cxr_sites.pixels import load_images
from fedsynth.data.cxr_sites.readers import read_chestxray14, read_chexpert, read_mimic, read_table
from fedsynth.data.cxr_sites.site import read_cxr_site
from fedsynth.data.cxr_sites.source import locate_site
from fedsynth.data.cxr_sites.splits import split_rows
from fedsynth.data.cxr_sites.table import LABELS, CxrTable
from fedsynth.errors import ConfigError, DataError


def names(table: CxrTable, row: int) -> set[str]:
    return {label for label, value in zip(LABELS, table.target[row], strict=True) if value}


def test_mimic_joins_labels_of_studies_to_frontal_images(tmp_path: Path) -> None:
    write_mimic(tmp_path, [
        (10000032, 50414267, "PA", {"No_Finding": "1.0", "Support_Devices": "1.0"}),
        (10000032, 53189527, "LATERAL", {"Edema": "1.0"}),
        (11000980, 54577367, "AP", {"Edema": "1.0", "Pneumonia": "-1.0", "Pleural_Effusion": "1.0"}),
        (11000980, 54577368, "AP", {"Fracture": "1.0", "Atelectasis": "0.0"}),
        (12000980, 54577369, "AP", None),
    ])  # fmt: skip
    table = read_mimic(tmp_path)
    assert table.path == (
        "files/p10/p10000032/s50414267/d50414267.jpg",
        "files/p11/p11000980/s54577367/d54577367.jpg",
    )
    assert [names(table, row) for row in (0, 1)] == [{"No Finding"}, {"Edema", "Pleural Effusion"}]
    assert table.patient.tolist() == [10000032, 11000980]
    assert table.dropped == {"study without labels": 1, "not frontal": 1, "none of the eight labels": 1}
    assert all((tmp_path / path).is_file() for path in table.path)


@pytest.mark.parametrize("name", ["CheXpert-v1.0", "CheXpert-v1.0-small"])
def test_chexpert_reads_frontal_views_whatever_its_folder_is_called(tmp_path: Path, name: str) -> None:
    root = tmp_path / "renamed"
    write_chexpert(root, [
        (1, "Frontal", "AP", {"Pneumothorax": "1.0", "Edema": "-1.0"}),
        (1, "Lateral", "", {"Pneumothorax": "1.0"}),
        (2, "Frontal", "PA", {"Support_Devices": "1.0", "No_Finding": ""}),
        (3, "Frontal", "LL", {"Edema": "1.0"}),
        (64540, "Frontal", "PA", {"Consolidation": "1.0", "Cardiomegaly": "1.0"}),
    ], name=name)  # fmt: skip
    table = read_chexpert(root)
    assert table.patient.tolist() == [1, 64540]
    assert [names(table, row) for row in (0, 1)] == [{"Pneumothorax"}, {"Consolidation", "Cardiomegaly"}]
    assert table.dropped == {"not frontal": 2, "none of the eight labels": 1}
    assert all((root / path).is_file() for path in table.path)


def test_chestxray14_renames_effusion_and_finds_images_in_the_unpacked_archives(tmp_path: Path) -> None:
    write_chestxray14(tmp_path, [
        (1, "Effusion|Infiltration", "PA"), (1, "Hernia", "AP"), (2, "No Finding", "AP"), (3, "Pneumonia", "PA"),
    ], folders=("images_001/images", "images_002/images"))  # fmt: skip
    table = read_chestxray14(tmp_path)
    assert [names(table, row) for row in (0, 1, 2)] == [{"Pleural Effusion"}, {"No Finding"}, {"Pneumonia"}]
    assert table.path == (
        "images_001/images/00000001_000.png",
        "images_001/images/00000002_002.png",
        "images_002/images/00000003_003.png",
    )
    assert table.dropped == {"not frontal": 0, "none of the eight labels": 1}


#: Five images, one of them lateral or without a label, and one that a lossy copy lacks.
SITES = {
    "mimic": (
        lambda root: write_mimic(root, [
            (10000032, 50414267, "PA", one_label(0)), (10000032, 50414268, "LATERAL", one_label(1)),
            (11000980, 54577367, "AP", one_label(2)), (12000980, 54577368, "AP", one_label(3)),
        ]),
        "files/p11/p11000980/s54577367/d54577367.jpg",
        "files/p10/p10000032/s50414268/d50414268.jpg",
    ),
    "chexpert": (
        lambda root: write_chexpert(root, [
            (1, "Frontal", "AP", one_label(0)), (1, "Lateral", "", one_label(1)),
            (2, "Frontal", "PA", one_label(2)), (3, "Frontal", "AP", one_label(3)),
        ]),
        "train/patient00002/study2/view1_frontal.jpg",
        "train/patient00001/study1/view1_lateral.jpg",
    ),
    "chestxray14": (
        lambda root: write_chestxray14(root, [
            (1, "Effusion", "PA"), (1, "Hernia", "AP"), (2, "No Finding", "AP"), (3, "Pneumonia", "PA"),
        ]),
        "images/00000002_002.png",
        "images/00000001_001.png",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(SITES))
def test_images_that_are_only_listed_are_refused_with_counts_unless_allowed(
    tmp_path: Path, name: str
) -> None:
    write, used, unused = SITES[name]
    write(tmp_path / "site")
    found = partial(locate_site, name, tmp_path / "site", cache_dir=tmp_path / "cache")
    whole = found()
    (tmp_path / "site" / unused).unlink()
    assert found().digest == whole.digest
    (tmp_path / "site" / used).unlink()
    with pytest.raises(
        DataError, match=rf"lacks 1 of the 3 frontal .*{used}.*data\.allow_missing_files=true"
    ):
        found()
    rest = found(allow_missing_files=True)
    assert rest.digest != whole.digest
    table = read_table(name, tmp_path / "site")
    assert len(table) == 2
    assert used not in table.path
    assert table.dropped["no file"] == 1
    # As many images, but others.
    write(tmp_path / "site")
    (tmp_path / "site" / table.path[0]).unlink()
    assert found(allow_missing_files=True).digest not in (whole.digest, rest.digest)


@pytest.mark.parametrize("allow", [True, False])
def test_site_without_any_image_is_refused(tmp_path: Path, allow: bool) -> None:
    write_chestxray14(tmp_path / "site", [(1, "Effusion", "PA"), (2, "Edema", "AP")])
    shutil.rmtree(tmp_path / "site" / "images")
    with pytest.raises(DataError, match=r"lacks 2 of the 2 .*images/00000001_000\.png\. Fetch them\."):
        locate_site("chestxray14", tmp_path / "site", cache_dir=tmp_path, allow_missing_files=allow)
    with pytest.raises(DataError, match="holds none of the 2 listed images of chestxray14"):
        read_table("chestxray14", tmp_path / "site")


def population(num: int = 400) -> CxrTable:
    """Patients with one to three images; every fifth image has two labels."""
    random = np.random.default_rng(0)
    patient = np.repeat(np.arange(num), random.integers(1, 4, num))
    target = np.eye(8, dtype=np.uint8)[random.integers(0, 8, len(patient))]
    target[::5, 0] = target[::5, 1] = 1
    return CxrTable(Path(), tuple(f"{row}.png" for row in range(len(patient))), patient, target, {})


@pytest.mark.parametrize("fractions", [(0.8, 0.1, 0.1), (0.7, 0.1, 0.2)])
def test_splits_are_by_person_in_the_asked_shares_and_training_is_single_label(
    fractions: tuple[float, ...],
) -> None:
    table = population()
    rows = split_rows(table, site="mimic", fractions=fractions, seed=42)
    persons = [set(table.patient[index].tolist()) for index in rows.values()]
    assert not persons[0] & persons[1] | persons[0] & persons[2] | persons[1] & persons[2]
    # Test images are all those of their persons, of whom there are exactly the asked number.
    assert len(persons[2]) == round(fractions[2] * 400)
    assert set(np.flatnonzero(np.isin(table.patient, list(persons[2])))) == set(rows["test"])
    for split in ("train", "val"):
        assert (table.target[rows[split]].sum(1) == 1).all()
    # Every single-label image is somewhere.
    single = set(np.flatnonzero(table.target.sum(1) == 1))
    assert single <= set(np.concatenate(list(rows.values())))
    again = split_rows(table, site="mimic", fractions=fractions, seed=42)
    assert all(np.array_equal(rows[split], again[split]) for split in rows)
    other = split_rows(table, site="chexpert", fractions=fractions, seed=42)
    assert set(other["test"]) != set(rows["test"])


def test_limits_keep_whole_persons_and_smaller_ones_are_subsets() -> None:
    table = population()
    settings: dict[str, Any] = {"site": "mimic", "fractions": (0.8, 0.1, 0.1), "seed": 1}
    everyone = split_rows(table, **settings)
    some, fewer = (
        split_rows(table, max_images=limit, **settings) for limit in ((200, 40, 60), (150, 35, 50))
    )
    for number, split in enumerate(everyone):
        assert (200, 40, 60)[number] - 3 < len(some[split]) <= (200, 40, 60)[number]
        assert set(fewer[split]) <= set(some[split]) <= set(everyone[split])
        chosen = np.isin(table.patient[everyone[split]], table.patient[some[split]])
        assert set(everyone[split][chosen]) == set(some[split])


def test_label_missing_in_a_split_is_refused_with_counts() -> None:
    table = population(60)
    table.target[:, 7] = 0
    table.target[:, 0] |= table.target.sum(1) == 0
    with pytest.raises(DataError, match=r"mimic: no image of Pneumothorax in train \(\{'No Finding': \d+"):
        split_rows(table, site="mimic", fractions=(0.6, 0.2, 0.2), seed=0)


def write_whole_site(root: Path, num: int = 240) -> None:
    """Image i has the label i mod 8, every third another one too."""
    called = ["Effusion" if label == "Pleural Effusion" else label for label in LABELS]
    findings = [
        {called[number % 8]} | ({called[number // 8 % 8]} if number % 3 == 0 else set())
        for number in range(num)
    ]
    write_chestxray14(root, [(number // 2, "|".join(names), "PA") for number, names in enumerate(findings)])


def test_site_has_what_an_image_set_needs_and_is_read_from_its_cache_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, cache = tmp_path / "site", tmp_path / "cache"
    write_whole_site(root)
    options: dict[str, Any] = {"image_size": 16, "split_fractions": (0.5, 0.25, 0.25), "cache_dir": cache}
    site = read_cxr_site("chestxray14", root, **options)
    for split, images in site.splits.items():
        assert images.image.shape[1:] == (1, 16, 16)
        assert images.image.dtype == np.uint8
        assert (
            len(images.image)
            == len(images.label)
            == len(images.patient)
            == site.report["splits"][split]["images"]
        )
        assert images.classes == LABELS
        assert (images.patient >= 3 * 10**9).all()
    # Image number i is grey level i mod 200 all over: pixels, labels and persons belong together.
    train = site.splits["train"]
    number = train.image[:, 0, 0, 0].astype(int)
    assert all(train.label[row, value % 8] for row, value in enumerate(number) if value < 40)
    monkeypatch.setattr(pixels, "_open", lambda *arguments: pytest.fail("an image was opened again"))
    again = read_cxr_site("chestxray14", root, **options)
    assert all(np.array_equal(site.splits[split].image, again.splits[split].image) for split in site.splits)


def test_changed_file_is_opened_again(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", 10)
    first = load_images(tmp_path, ["a.png"], size=8, cache_dir=tmp_path / "cache")
    write_image(tmp_path / "a.png", 200, size=(50, 50))
    second = load_images(tmp_path, ["a.png"], size=8, cache_dir=tmp_path / "cache")
    assert (int(first.max()), int(second.min())) == (10, 200)


def test_killed_reading_keeps_its_finished_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "BLOCK", 2)
    for number in range(5):
        write_image(tmp_path / f"{number}.png", number)
    opened: list[str] = []
    real = pixels._open

    def counted(root: Path, size: int, path: str) -> Any:
        opened.append(path)
        if path == "4.png" and len(opened) <= 5:
            raise KeyboardInterrupt
        return real(root, size, path)

    monkeypatch.setattr(pixels, "_open", counted)
    paths = [f"{number}.png" for number in range(5)]
    with pytest.raises(KeyboardInterrupt):
        load_images(tmp_path, paths, size=8, cache_dir=tmp_path / "cache")
    images = load_images(tmp_path, paths, size=8, cache_dir=tmp_path / "cache")
    assert opened == [*paths, "4.png"]
    assert images[:, 0, 0].tolist() == list(range(5))


def test_images_keep_their_aspect_and_lose_the_ends_of_the_longer_side(tmp_path: Path) -> None:
    # 60 wide, 20 high: black, white, black thirds; the middle one is left.
    wide = np.zeros((20, 60), dtype=np.uint8)
    wide[:, 20:40] = 255
    Image.fromarray(wide).save(tmp_path / "wide.png")
    image = load_images(tmp_path, ["wide.png"], size=10, cache_dir=None)[0]
    assert image[:, 1:-1].min() == 255
    assert image.shape == (10, 10)


def test_color_files_become_grey_levels(tmp_path: Path) -> None:
    for number, mode in enumerate(("RGB", "RGBA", "L")):
        write_image(tmp_path / f"{number}.png", 77, mode=mode)
    images = load_images(tmp_path, ["0.png", "1.png", "2.png"], size=8, cache_dir=None)
    assert np.unique(images).tolist() == [77]


def test_all_bad_images_are_named_in_one_error(tmp_path: Path) -> None:
    write_image(tmp_path / "small.png", 1, size=(6, 40))
    (tmp_path / "cut.jpg").write_bytes(b"\xff\xd8\xff\xe0 no image")
    Image.fromarray(np.zeros((20, 20), dtype=np.uint16)).save(tmp_path / "deep.png")
    paths = ["small.png", "cut.jpg", "deep.png", "absent.png"]
    with pytest.raises(DataError) as error:
        load_images(tmp_path, paths, size=8, cache_dir=None)
    text = str(error.value)
    assert "4 of 4 images" in text
    for part in (
        "small.png: 6 × 40 pixels",
        "cut.jpg: ",
        "deep.png: mode I;16",
        "absent.png: no such",
    ):
        assert part in text


def test_lists_with_faults_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds none of mimic-cxr-2\.0\.0-chexpert\.csv, mimic"):
        read_mimic(tmp_path)
    write_csv(tmp_path / "train.csv", ["Path", "Sex"], [["a", "b"]])
    with pytest.raises(DataError, match="lacks the columns Frontal/Lateral, AP/PA, No Finding"):
        read_chexpert(tmp_path)
    write_chexpert(tmp_path, [(1, "Frontal", "AP", {"Edema": "2.0"}), (2, "Frontal", "AP", one_label(0))])
    with pytest.raises(
        DataError, match=r"column Edema holds 1 values other than 1, 0, -1 and blank, such as '2\.0'"
    ):
        read_chexpert(tmp_path)
    write_chexpert(tmp_path, [(1, "Lateral", "", one_label(0))])
    with pytest.raises(DataError, match="no frontal image"):
        read_chexpert(tmp_path)
    (tmp_path / "Data_Entry_2017.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match="cannot be read"):
        read_chestxray14(tmp_path)


def test_study_with_two_rows_of_labels_is_refused(tmp_path: Path) -> None:
    write_mimic(
        tmp_path, [(10000032, 50414267, "PA", one_label(0)), (10000032, 50414267, "AP", one_label(1))]
    )
    with pytest.raises(DataError, match="1 studies have two rows of labels"):
        read_mimic(tmp_path)


def test_unknown_site_absent_folder_and_bad_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="dataset must be one of mimic, chexpert, chestxray14, got 'padchest'"
    ):
        read_table("padchest", tmp_path)
    with pytest.raises(DataError, match=r"There is no folder .*absent for mimic"):
        read_table("mimic", tmp_path / "absent")
    with pytest.raises(ConfigError, match="sum 1"):
        split_rows(population(), site="mimic", fractions=(0.8, 0.1, 0.2), seed=0)
    with pytest.raises(ConfigError, match="max_images"):
        split_rows(population(), site="mimic", fractions=(0.8, 0.1, 0.1), seed=0, max_images=(1, 2))
