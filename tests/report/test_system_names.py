"""Arms of federated systems: titles, order, and what is a variant of what."""

from __future__ import annotations

import pytest

from fedsynth.report.glossary import arm_title, is_headline, row_title, stage_title
from fedsynth.report.system_names import (
    ABLATIONS,
    CONTROL_SYSTEMS,
    PAPER_SYSTEMS,
    base_rank,
    is_main_system,
    scaled_system,
    system_rank,
    system_stage_title,
    system_title,
)


@pytest.mark.parametrize(
    ("arm", "title"),
    [
        ("fedgpd", "FedGPD"),
        ("fedavg_weighted", "FedAvg, class-weighted loss"),
        ("fedmpa_no_pull", "FedMPA, no prototype pull"),
        ("fedproto_dp", "FedProto, DP prototypes"),
        ("fedmpa_dp_eps0.5", "FedMPA, DP prototypes, ε = 0.5"),
        ("fedavg_clients_16", "FedAvg, 16 clients"),
        ("invented", None),
        ("invented_dp", None),
        ("invented_clients_4", None),
        ("", None),
    ],
)
def test_titles_follow_from_arms_and_unknown_arms_have_none(arm, title):
    assert system_title(arm) == title


def test_the_papers_order_comes_first_then_controls_noisy_ones_ablations_and_more_clients():
    expected = [
        *PAPER_SYSTEMS, *CONTROL_SYSTEMS, "fedproto_dp", "fedmpa_dp", *ABLATIONS,
        "fedavg_clients_4", "fedavg_clients_16", "fedavg_clients_64", "fedmpa_clients_4", "zebra",
    ]  # fmt: skip
    shuffled = expected[::-1]
    assert sorted(shuffled, key=system_rank) == expected


def test_noise_follows_its_own_system_where_both_are_attacked():
    arms = ["fedmpa_dp", "fedproto_dp", "fedmpa", "fedproto"]
    assert sorted(arms, key=base_rank) == ["fedproto", "fedproto_dp", "fedmpa", "fedmpa_dp"]


def test_only_a_number_at_the_end_is_a_number_of_clients():
    assert scaled_system("fedmpa_clients_64") == ("fedmpa", 64)
    assert scaled_system("fedmpa_clients_many") is None
    assert scaled_system("clients") is None


def test_main_systems_are_neither_ablations_nor_other_numbers_of_clients():
    assert [is_main_system(arm) for arm in ("fedmpa", "fedmpa_dp", "new", "fedmpa_no_pull", "fedmpa_clients_4")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_stages_are_titled_after_their_system_and_others_keep_their_names():
    assert system_stage_title("score_fedmpa") == "FedMPA: performance and privacy"
    assert stage_title("leakage_fedproto_dp") == "FedProto, DP prototypes: leakage of prototypes"
    assert stage_title("fedavg") == arm_title("fedavg") == row_title("score_fedavg", "fedavg") == "FedAvg"
    assert stage_title("score_unknown") == "score_unknown"
    assert stage_title("fusion_encoder") == "federated encoder"


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (("score_fedmpa", "fedmpa", "test/uar"), True),
        (("score_fedmpa", "fedmpa", "pps"), True),
        (("score_fedmpa_dp", "fedmpa_dp", "attack_auroc"), True),
        (("score_fedmpa", "fedmpa", "test/f1"), False),
        (("score_fedmpa", "fedmpa", "segment/test/uar"), False),
        (("score_fedmpa_no_pull", "fedmpa_no_pull", "test/uar"), False),
        (("score_fedavg_clients_4", "fedavg_clients_4", "test/uar"), False),
        (("fedavg", "both", "test/auroc"), False),
        (("leakage_fedmpa", "fedmpa", "attack_auroc"), False),
    ],
)
def test_the_headline_holds_three_numbers_of_every_main_system(row, shown):
    assert is_headline(*row) is shown
