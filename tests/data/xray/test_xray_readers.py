"""What the readers make of their files, and that a bad file is refused once, with all its faults."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsynth.data.medmnist import SPLITS
from fedsynth.data.xray.images import MULTILABEL, XrayImages, identical_groups
from fedsynth.data.xray.kermany import ETIOLOGIES, read_kermany
from fedsynth.data.xray.nih import FINDINGS, NO_FINDING, read_nih
from fedsynth.data.xray.pneumonia import read_pneumoniamnist
from fedsynth.errors import ConfigError, DataError

Write = Callable[[dict[str, Any]], Path]


def test_kermany_keeps_images_patients_and_etiology(kermany_arrays: dict, write_npz: Write) -> None:
    images = read_kermany(write_npz(kermany_arrays))
    assert images.classes == ETIOLOGIES
    np.testing.assert_array_equal(images.image, kermany_arrays["images"])
    assert [ETIOLOGIES[label] for label in images.label()] == kermany_arrays["etiology"].tolist()
    assert images.official_test is not None
    assert images.official_test.tolist() == (kermany_arrays["split"] == "test").tolist()
    # Equal numbers exactly for equal keys.
    number, key = images.patients(), kermany_arrays["patient_key"]
    np.testing.assert_array_equal(number[:, None] == number, key[:, None] == key)


@pytest.mark.parametrize(("labels", "name"), [("binary", "pneumonia"), ("abnormal", "abnormal")])
def test_two_classes_of_kermany_are_normal_and_the_rest(
    kermany_arrays: dict, write_npz: Write, labels: str, name: str
) -> None:
    images = read_kermany(write_npz(kermany_arrays), labels=labels)
    assert images.classes == ("normal", name)
    assert (images.label() == (kermany_arrays["etiology"] != "normal")).all()


def test_everything_wrong_with_a_file_is_said_at_once(kermany_arrays: dict, write_npz: Write) -> None:
    del kermany_arrays["split"]
    kermany_arrays["images"] = np.zeros((5, 8, 8, 3), dtype=np.float32)
    kermany_arrays["etiology"][0] = "fungus"
    kermany_arrays["patient_key"][3] = ""
    with pytest.raises(DataError) as caught:
        read_kermany(path := write_npz(kermany_arrays))
    message = str(caught.value)
    for part in (
        str(path), "7 faults", "split missing", "color", "float32", "'fungus'", "patient_key: 1 entries",
        "36 entries for 5 images", "doi:10.17632",
    ):  # fmt: skip
        assert part in message, part


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("images", np.zeros((36, 8, 9), np.uint8), r"shape \(36, 8, 9\); square"),
        ("images", np.full((36, 8, 8), 7, np.uint8), "every pixel is 7"),
        ("images", np.full((36, 8, 8), np.nan), "float64 with NaN pixels"),
        ("etiology", np.array(["normal", "bacteria"] * 18), "no image of class virus"),
        ("patient_key", np.arange(36), "one text an image"),
        ("split", np.array(["fold 1"] * 36), "36 entries such as 'fold 1'"),
        ("patient_key", np.array(["a"] * 36, object), "an array of Python objects"),
    ],
)
def test_each_fault_of_kermany_names_its_key(
    kermany_arrays: dict, write_npz: Write, key: str, value: np.ndarray, said: str
) -> None:
    with pytest.raises(DataError, match=f"key {key}: .*{said}"):
        read_kermany(write_npz(kermany_arrays | {key: value}))


def test_one_kind_of_pneumonia_is_enough_for_two_classes(kermany_arrays: dict, write_npz: Write) -> None:
    kept = kermany_arrays["etiology"] != "virus"
    path = write_npz({key: value[kept] for key, value in kermany_arrays.items()})
    assert read_kermany(path, labels="binary").target.sum() == kept.sum()
    with pytest.raises(DataError, match="no image of class virus"):
        read_kermany(path)


def test_a_patient_key_without_its_etiology_is_refused(kermany_arrays: dict, write_npz: Write) -> None:
    keys = np.array([key.split("/")[1] for key in kermany_arrays["patient_key"]])
    with pytest.raises(DataError, match="8 keys such as 'person0' have several etiologies"):
        read_kermany(write_npz(kermany_arrays | {"patient_key": keys}))


def test_an_absent_or_damaged_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No file at"):
        read_kermany(tmp_path / "none.npz")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(DataError, match="truncated or damaged"):
        read_nih(tmp_path / "cut.npz")
    (tmp_path / "text.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"\(it is no \.npz archive\)"):
        read_nih(tmp_path / "text.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(DataError, match="single array"):
        read_kermany(tmp_path / "one.npy")


def test_unknown_kinds_of_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="etiology, binary or abnormal"):
        read_kermany(tmp_path, labels="eight")
    with pytest.raises(ValueError, match="eight or abnormal"):
        read_nih(tmp_path, labels="etiology")


def test_nih_labels_are_those_of_the_file_and_no_finding_is_none_of_them(
    nih_arrays: dict, write_npz: Write
) -> None:
    images = read_nih(write_npz(nih_arrays))
    assert images.task == MULTILABEL
    assert images.classes == (NO_FINDING, "Atelectasis", "Edema", "Effusion")
    rows = []
    for label, patient in zip(nih_arrays["labels"], nih_arrays["patient_id"], strict=True):
        said = {str(nih_arrays["label_names"][i]) for i in np.flatnonzero(label)} or {NO_FINDING}
        if said & {NO_FINDING, *FINDINGS}:
            rows.append(([int(name in said) for name in images.classes], int(patient)))
    assert len(rows) < 60  # the image with a hernia only is left out
    assert images.label().tolist() == [row for row, _ in rows]
    assert images.patient_key.tolist() == [patient for _, patient in rows]


def test_abnormal_takes_every_label_and_every_image(nih_arrays: dict, write_npz: Write) -> None:
    images = read_nih(write_npz(nih_arrays), labels="abnormal")
    assert images.label().tolist() == nih_arrays["labels"].any(1).astype(int).tolist()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": np.full((60, 4), 2)}, "only 0 and 1"),
        ({"labels": np.zeros((60, 3), np.uint8)}, "one column for each of 4 label_names"),
        ({"labels": np.zeros((60, 4), np.uint8)}, "none of Atelectasis"),
        ({"patient_id": np.full(60, 0.5)}, "patient_id: dtype float64"),
        ({"patient_id": np.arange(59)}, "59 entries for 60 images"),
    ],
)
def test_each_fault_of_nih_is_named(nih_arrays: dict, write_npz: Write, change: dict, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_nih(write_npz(nih_arrays | change))


def test_single_label_only_and_chosen_classes(nih_arrays: dict, write_npz: Write) -> None:
    images = read_nih(write_npz(nih_arrays))
    single = images.single_label_only()
    assert 0 < len(single) < len(images)
    assert (single.target.sum(1) == 1).all()
    two = images.only_classes(["Effusion", "Atelectasis"])
    assert two.classes == ("Effusion", "Atelectasis")
    assert len(two) == int((images.target[:, 1] | images.target[:, 3]).sum())
    np.testing.assert_array_equal(two.target[:, 0], images.target[images.target[:, [1, 3]].any(1), 3])
    for names in (["Effusion"], ["Effusion", "Effusion"], ["Effusion", "Cough"]):
        with pytest.raises(ConfigError, match="classes must name two or more"):
            images.only_classes(names)


def test_images_that_disagree_are_refused(many_images: XrayImages) -> None:
    with pytest.raises(DataError, match="do not agree"):
        XrayImages(
            many_images.image[1:], many_images.target, ("a", "b", "c"), "multiclass", many_images.patient_key
        )
    with pytest.raises(DataError, match="exactly one class"):
        XrayImages(
            many_images.image, 1 - many_images.target, ("a", "b", "c"), "multiclass", many_images.patient_key
        )


def test_identical_groups_are_those_of_all_pairs(many_images: XrayImages) -> None:
    image = many_images.image[:12].copy()
    image[[4, 9]], image[7] = image[1], image[2]
    twins = XrayImages(
        image, many_images.target[:12], ("a", "b", "c"), "multiclass", many_images.patient_key[:12]
    )
    assert [group.tolist() for group in identical_groups(twins)] == [[1, 4, 9], [2, 7]]


@pytest.fixture
def pneumonia(tmp_path: Path) -> tuple[Path, Path, dict[str, np.ndarray], list[dict[str, Any]]]:
    """PneumoniaMNIST with 12 images a split, two a patient, and its table."""
    rng = np.random.default_rng(2)
    arrays = {}
    rows: list[dict[str, Any]] = []
    for split in SPLITS:
        arrays[f"{split}_images"] = rng.integers(0, 256, (12, 28, 28), dtype=np.uint8)
        arrays[f"{split}_labels"] = (rng.random((12, 1)) < 0.5).astype(np.uint8)
        arrays[f"{split}_labels"][:2, 0] = (0, 1)
        rows += [
            {
                "split": split,
                "index": index,
                "label": int(label),
                "patient_key": f"{split}/{index // 2}",
                "mse": 1.5,
            }
            for index, label in enumerate(arrays[f"{split}_labels"][:, 0])
        ]
    return tmp_path / "p.npz", tmp_path / "p.csv", arrays, rows


def read_pneumonia(content: tuple[Path, Path, dict[str, np.ndarray], list[dict[str, Any]]]) -> XrayImages:
    path, table, arrays, rows = content
    np.savez(path, **arrays)
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return read_pneumoniamnist(path, table)


def test_the_table_says_whose_each_image_is_in_any_order_of_rows(pneumonia: Any) -> None:
    path, table, arrays, rows = pneumonia
    images = read_pneumonia((path, table, arrays, rows[::-1]))
    assert images.patient_key.tolist() == [row["patient_key"] for row in rows]
    assert images.label().tolist() == [row["label"] for row in rows]
    assert images.official_test is not None
    assert images.official_test.tolist() == [row["split"] == "test" for row in rows]
    np.testing.assert_array_equal(images.image[12:24], arrays["val_images"])


def test_an_unknown_patient_is_one_of_its_own_but_for_the_very_same_image(pneumonia: Any) -> None:
    _, _, arrays, rows = pneumonia
    for index in (0, 3, 20):
        rows[index]["patient_key"] = ""
    arrays["val_images"][8] = arrays["train_images"][5]  # row 20 shows the image of row 5
    keys = read_pneumonia(pneumonia).patient_key
    assert keys[20] == keys[5]
    assert all((keys == keys[row]).sum() == 1 for row in (0, 3))


def test_a_table_for_another_order_of_the_images_is_refused(pneumonia: Any) -> None:
    _, _, arrays, _ = pneumonia
    order = np.random.default_rng(5).permutation(12)
    wrong = int((arrays["train_labels"] != arrays["train_labels"][order]).sum())
    assert wrong
    for part in ("images", "labels"):
        arrays[f"train_{part}"] = arrays[f"train_{part}"][order]
    with pytest.raises(DataError, match=f"{wrong} rows have another label than their image"):
        read_pneumonia(pneumonia)


def test_a_broken_table_is_refused_with_all_its_faults(pneumonia: Any) -> None:
    path, table, _, rows = pneumonia
    rows[0]["index"], rows[1]["split"], rows[2]["index"] = 99, "fold", 3
    with pytest.raises(
        DataError, match=r"(?s)2 rows name no image.*3 images have no row.*1 images have several"
    ):
        read_pneumonia(pneumonia)
    table.write_text("split,index\ntrain,0\n")
    with pytest.raises(DataError, match="label, patient_key missing; it has split, index"):
        read_pneumoniamnist(path, table)
    with pytest.raises(DataError, match="No table of patients"):
        read_pneumoniamnist(path, table.with_name("none.csv"))


@pytest.mark.real_data
def test_the_real_files_hold_what_is_known_of_them(data_dir: Path) -> None:
    chest, medmnist = data_dir / "chest", data_dir / "medmnist"
    if not (chest / "kermany_pediatric_64.npz").is_file():
        pytest.skip("no X-rays with patients below DATA_DIR")
    kermany = read_kermany(chest / "kermany_pediatric_64.npz")
    assert kermany.target.sum(0).tolist() == [1575, 2772, 1493]
    assert len(np.unique(kermany.patient_key)) == 4082
    groups = identical_groups(kermany)
    assert len(groups) == 29
    assert all(len(np.unique(kermany.patient_key[group])) == 1 for group in groups)
    nih = read_nih(chest / "nih_chestxray14_1000_64.npz")
    assert dict(zip(nih.classes, nih.target.sum(0).tolist(), strict=True))["Effusion"] == 170
    assert len(nih.classes) == 8
    files = ("pneumoniamnist.npz", "pneumoniamnist_patients.csv")
    pneumonia = read_pneumoniamnist(*(medmnist / file for file in files))
    assert len(pneumonia) == 5856
    assert pneumonia.official_test is not None
    test = set(pneumonia.patient_key[pneumonia.official_test])
    assert not test & set(pneumonia.patient_key[~pneumonia.official_test])
