"""The section on federated systems: our numbers, the paper's beside them, never as a comparison that does not hold."""

from __future__ import annotations

import json

import numpy as np
import pytest

from federated_run_folders import (
    ALL,
    PAPER_SCHEDULE,
    ROUNDS,
    SYSTEMS,
    Schedule,
    auroc_of,
    uar_of,
    write_federated_run,
)
from fedsynth.report import build_report, collect_records, load_run
from fedsynth.report.build import FIGURE_NAMES
from fedsynth.report.federated_tables import systems
from fedsynth.report.section import Material
from fedsynth.report.sections import build_sections
from fedsynth.report.sections.federated_costs import size
from fedsynth.report.sections.federated_systems import federated_section

MINUS = "\N{MINUS SIGN}"


@pytest.fixture
def make(tmp_path):
    """Material of fake runs, one for each seed."""

    def inner(seeds=(42,), **options) -> Material:
        runs = tuple(
            load_run(write_federated_run(tmp_path, seed, **options), log_dir=tmp_path) for seed in seeds
        )
        return Material(runs, tuple(collect_records(runs)))

    return inner


def rows_of(text: str, first_cell: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith(f"| {first_cell} |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def tables_of(text: str) -> list[list[str]]:
    """Heads of the tables."""
    blocks = [block.splitlines()[0] for block in text.split("\n\n") if block.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in blocks]


def test_without_a_scored_system_there_is_no_section(make):
    assert federated_section(make(arms=())) is None


def test_a_run_of_variants_alone_still_shows_schedule_and_rounds(make):
    section = federated_section(make(arms=("fedavg_clients_4", "fedmpa_clients_4")))
    assert "**Schedule**" in section.text
    assert "|" not in section.text
    assert [item.name for item in section.figures] == ["uar_by_round"]


def test_systems_stand_in_the_papers_order_then_controls_then_noisy_ones_with_their_budget(make):
    text = federated_section(make(arms=tuple(reversed(ALL)))).text
    (utility, *_) = (block for block in text.split("\n\n") if block.startswith("|"))
    names = [line.split("|")[1].strip() for line in utility.splitlines()[2:]]
    assert [name for name in names if name != "95 % CI"] == [
        "Centralized", "FedProx", "FedAvg", "FedProto", "FedGPD", "FedMPA", "local-only", "FedAvg, class-weighted loss",
        "FedProto, DP prototypes, ε = 4", "FedMPA, DP prototypes, ε = 4",
    ]  # fmt: skip


@pytest.mark.parametrize("simulated", [True, False])
@pytest.mark.parametrize("is_speech", [True, False])
def test_printed_numbers_always_stand_beside_ours_in_columns_named_after_their_data(
    make, simulated, is_speech
):
    text = federated_section(make(arms=SYSTEMS, simulated=simulated, is_speech=is_speech)).text
    utility, privacy, *_ = tables_of(text)
    assert utility[1:] == [
        "Acc", "Prec", "Sens", "Spec", "F1", "UAR",
        *(f"paper (E-DAIC): {name}" for name in ("Acc", "Prec", "Sens", "F1", "UAR")),
    ]  # fmt: skip
    assert privacy[-3:] == [f"paper (E-DAIC): {name}" for name in ("attack AUROC", "ρ", "PPS")]
    classified, attacked, *_ = rows_of(text, "FedMPA")
    assert classified[-5:] == ["0.88", "0.89", "0.89", "0.89", "0.89"]
    assert attacked[-3:] == ["0.52", "0.96", "0.92"]
    assert classified[6] == f"**{uar_of('fedmpa'):.3f}**"
    assert attacked[1] == f"**{auroc_of('fedmpa'):.3f}**"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"simulated": True}, "simulated speech corpus"),
        ({"simulated": True, "schedule": PAPER_SCHEDULE}, "reproduces nothing"),
        ({"simulated": True, "is_speech": False}, "simulated X-rays and ECGs"),
        ({"simulated": False, "is_speech": False}, "X-rays and ECGs, another task"),
        ({"simulated": False}, "the settings are not the paper's"),
    ],
)
def test_a_run_that_is_no_repetition_says_so_and_marks_nothing(make, options, reason):
    material = make(arms=SYSTEMS, **options)
    text = federated_section(material).text
    assert "**They are not comparable with ours**" in text
    assert reason in text
    assert "●" not in text
    assert material.published == {}


def test_a_repetition_on_real_data_is_compared_and_still_names_the_other_network(make):
    text = federated_section(make(arms=SYSTEMS, simulated=False, schedule=PAPER_SCHEDULE)).text
    assert "not comparable" not in text
    assert "ALiDeR) is not public" in text
    # UAR of FedProx is 0.89 [0.83, 0.94], that of the paper 0.74.
    assert rows_of(text, "FedProx")[0][-1] == "0.74 ●"
    # UAR of FedMPA is 0.85 [0.79, 0.90], that of the paper 0.89.
    assert rows_of(text, "FedMPA")[0][-1] == "0.89"


def test_captions_are_marked_when_simulated_and_only_then(make):
    assert federated_section(make(arms=SYSTEMS)).text.count("**SIMULATED.**") == 4
    assert "SIMULATED" not in federated_section(make((43,), arms=SYSTEMS, simulated=False)).text


def test_without_published_values_in_the_config_no_column_is_the_papers(make):
    text = federated_section(make(arms=SYSTEMS, paper={})).text
    assert "paper" not in text
    assert "E-DAIC" not in text


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        (
            Schedule(10, 2, 32, 1e-3),
            "10 rounds, 2 local epochs each, batch size 32, learning rate 0.001. Not the paper's, which is 30 rounds,"
            " 5 local epochs each, batch size 8, learning rate 1e-05.",
        ),
        (PAPER_SCHEDULE, "batch size 8, learning rate 1e-05. That is the paper's."),
    ],
)
def test_the_schedule_is_the_configs(make, schedule, told):
    assert told in federated_section(make(arms=SYSTEMS, schedule=schedule)).text


def test_a_system_with_another_schedule_is_named(make):
    material = make(arms=SYSTEMS)
    material.runs[0].config["stages"]["fedprox"]["batch_size"] = 4
    text = federated_section(material).text
    assert "Otherwise for `fedprox`: 10 rounds, 2 local epochs each, batch size 4," in text


def test_several_runs_show_mean_sd_and_the_interval_over_runs(make):
    material = make((42, 43, 44), arms=SYSTEMS)
    text = federated_section(material).text
    assert rows_of(text, "FedMPA")[0][6] == "**0.852 ± 0.002**"
    record = material.get("score_fedmpa", "fedmpa", "test/uar")
    low, high = (f"{bound:.3f}" for bound in (record.ci_low, record.ci_high))
    assert rows_of(text, "95 % CI")[5][6] == f"[{low}, {high}]"
    assert "mean ± SD over 3 runs" in text


def test_segments_have_a_table_of_their_own_and_only_where_there_are_some(make):
    assert "single segments" in federated_section(make(arms=SYSTEMS)).text
    text = federated_section(make((43,), arms=SYSTEMS, is_speech=False)).text
    assert "single segments" not in text
    assert "Test records," in text


def test_costs_tell_what_was_never_reached_and_who_has_several_models(make):
    text = federated_section(make(arms=SYSTEMS)).text
    assert tables_of(text)[-1][1] == "rounds to UAR ≥ 0.8"
    costs = {name: rows_of(text, name)[-1][1:] for name in ("FedProx", "FedProto", "FedMPA")}
    assert costs == {
        "FedProx": ["—", "1.25 MB", "1.54 kB", "—", "1", "softmax"],
        "FedProto": ["6", "1.25 MB", "1.54 kB", "—", "4", "softmax"],
        "FedMPA": ["8", "1.25 MB", "1.54 kB", "12.5%", "1", "hybrid"],
    }


def test_a_target_reached_in_some_runs_only_is_not_told_as_if_in_all(make, tmp_path):
    make((42, 43), arms=SYSTEMS)
    path = tmp_path / "artifacts" / "score_fedavg" / "43" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["metrics"] = [row for row in manifest["metrics"] if row["metric"] != "rounds_to_uar"]
    path.write_text(json.dumps(manifest))
    runs = tuple(
        load_run(tmp_path / "runs" / "fedmpa" / f"run-{seed}", log_dir=tmp_path) for seed in (42, 43)
    )
    text = federated_section(Material(runs, tuple(collect_records(runs)))).text
    assert rows_of(text, "FedAvg")[-1][1] == "5 (1 of 2 runs)"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(None, "—"), (0.0, "0 B"), (999.0, "999 B"), (1000.0, "1 kB"), (2.5e6, "2.5 MB"), (3e9, "3 GB")],
)
def test_sizes_are_readable(num_bytes, text):
    assert size(num_bytes) == text


def drawn(section, name: str):
    (found,) = [item for item in section.figures if item.name == name]
    return found


def points(axis) -> set[tuple[float, float]]:
    found = [np.asarray(item.get_offsets()) for item in axis.collections if not hasattr(item, "levels")]
    return {tuple(np.round(array[0], 6).tolist()) for array in found if len(array) == 1}


def test_the_plane_holds_the_papers_points_in_a_panel_of_their_own_and_none_beside_simulated_data(make):
    real = drawn(federated_section(make(arms=SYSTEMS, simulated=False)), "privacy_plane").figure.axes
    assert [axis.get_title() for axis in real] == ["this run", "paper (E-DAIC)"]
    assert points(real[1]) == {
        (0.84, 0.92), (0.86, 0.74), (0.88, 0.76), (0.9, 0.81), (0.92, 0.87), (0.96, 0.89),
    }  # fmt: skip
    assert (round(1 - 2 * abs(auroc_of("fedavg") - 0.5), 6), uar_of("fedavg")) in points(real[0])
    simulated = drawn(federated_section(make((43,), arms=SYSTEMS)), "privacy_plane")
    assert [axis.get_title() for axis in simulated.figure.axes] == ["this run"]
    assert "not drawn beside simulated data" in simulated.caption


def test_rounds_of_all_arms_are_drawn_and_epochs_of_centralized_training_count_as_parts_of_a_round(make):
    axes = drawn(federated_section(make((42, 44), arms=ALL)), "uar_by_round").figure.axes
    lines = {line.get_label(): line for line in axes[0].lines}
    assert lines["FedAvg"].get_xdata().tolist() == list(range(1, ROUNDS + 1))
    assert lines["Centralized"].get_xdata().tolist() == [0.5 * (row + 1) for row in range(2 * ROUNDS)]
    assert lines["FedAvg"].get_ydata()[0] == pytest.approx(
        uar_of("fedavg", 43) - 0.3
    )  # the mean of both seeds
    assert [axis.get_title() for axis in axes] == ["systems", "FedMPA and its variants", "more clients"]
    # Softmax-only inference is no training of its own.
    assert [line.get_label() for line in axes[1].lines] == [
        "FedMPA", "no repulsion", "no prototype pull", "plain cross-entropy", "cross-entropy alone",
        "clients weighted by records", "no server momentum", "no moving average of the bank",
    ]  # fmt: skip


def test_an_artifact_that_was_deleted_leaves_its_numbers_out(make, tmp_path):
    make(arms=("fedavg", "fedmpa"))
    (tmp_path / "artifacts" / "score_fedavg" / "42" / "manifest.json").unlink()
    run = load_run(tmp_path / "runs" / "fedmpa" / "run-42", log_dir=tmp_path)
    found = systems(Material((run,), tuple(collect_records([run]))))
    assert [one.arm for one in found] == ["fedmpa"]


def test_a_history_without_recall_leaves_the_curves_out(make, tmp_path):
    material = make(arms=("fedavg",))
    (tmp_path / "artifacts" / "fedavg" / "42" / "history.json").write_text('[{"epoch": 0, "val/uar": null}]')
    assert [item.name for item in federated_section(material).figures] == ["privacy_plane"]


def test_every_figure_is_known_so_that_a_stale_one_is_removed(make):
    found, left_out = build_sections(make())
    names = {item.name for section in found for item in section.figures}
    assert names == {
        "privacy_plane", "uar_by_round", "ablation", "client_scaling", "system_contrasts", "prototype_leakage",
    }  # fmt: skip
    assert names <= FIGURE_NAMES
    assert left_out == []


def test_the_written_report_of_a_simulated_run_reproduces_nothing(tmp_path):
    run = write_federated_run(tmp_path, arms=("fedavg", "fedmpa"), schedule=PAPER_SCHEDULE)
    files = build_report([run], tmp_path / "out", log_dir=tmp_path)
    text = files.markdown.read_text()
    assert text.startswith("# SIMULATED")
    assert "It reproduces nothing; its pipeline is that of *FedMPA" in text
    assert f"ours {MINUS} paper" not in text
    assert all(record.paper is None for record in files.records)
    assert "| FedMPA | UAR | 0.8500 | [0.7900, 0.9000] | 1 |" in text  # headline, without a paper column


@pytest.mark.parametrize(
    ("schedule", "told"),
    [(PAPER_SCHEDULE, "It reproduces *FedMPA"), (Schedule(), "No published value holds for its settings")],
)
def test_a_real_run_reproduces_the_paper_under_its_settings_only(tmp_path, schedule, told):
    run = write_federated_run(tmp_path, simulated=False, arms=("fedmpa",), schedule=schedule)
    assert told in build_report([run], tmp_path / "out", log_dir=tmp_path).markdown.read_text()
