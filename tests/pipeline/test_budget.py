"""The privacy budget: prices add up, auditors do not spend, a run over budget is refused before anything runs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.composition import compose_config
from fedsynth.errors import BudgetError, ConfigError, PrivateInputError
from fedsynth.pipeline.budget import check_budget, describe_prices, total_price
from fedsynth.run import Run

PRICES = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]),
    st.none() | st.tuples(st.floats(0.01, 50), st.floats(1e-9, 0.4)),
)


@given(PRICES)
def test_epsilon_and_delta_add_up(prices: dict[str, tuple[float, float] | None]) -> None:
    epsilon, delta = total_price(prices)
    spent = [price for price in prices.values() if price]
    assert epsilon == pytest.approx(sum(price[0] for price in spent))
    assert delta == pytest.approx(min(1.0, sum(price[1] for price in spent)))


@given(PRICES, st.floats(0.1, 100))
def test_a_budget_is_kept_or_the_run_refused(
    prices: dict[str, tuple[float, float] | None], budget: float
) -> None:
    if total_price(prices)[0] <= budget:
        check_budget(prices, budget)
    elif total_price(prices)[0] > budget * (1 + 1e-9):
        with pytest.raises(BudgetError, match="would be exceeded"):
            check_budget(prices, budget)


def test_no_budget_is_no_limit_and_ten_times_a_tenth_is_one() -> None:
    check_budget({"encoder": (math.inf, 0.0)}, None)
    check_budget({"encoder": (math.inf, 0.0)}, math.inf)
    check_budget({str(index): (0.1, 1e-6) for index in range(10)}, 1.0)


def test_the_message_lists_every_price() -> None:
    prices = {"encoder": (8.0, 1e-5), "encode": None, "release": (4.0, 1e-5)}
    assert describe_prices(prices) == "encoder 8 + release 4 = 12 (δ = 2e-05)"
    with pytest.raises(BudgetError, match=r"budget=10 .*encoder 8 \+ release 4 = 12"):
        check_budget(prices, 10.0)


def check(*words: str) -> dict[str, tuple[float, float] | None]:
    """Check a run as the app does before it starts; the prices of its stages."""
    run = Run(compose_config(["data.dir=/nowhere", "paths.log_dir=/nowhere", *words]))
    run.check()
    return {planned.name: planned.price for planned in run.plan({}) if planned.price is not None}


def test_encoder_and_release_spend_and_nobody_else() -> None:
    assert check("experiment=feddp_pald/dp_sgd") == {"fusion_encoder": (8.0, 1e-5), "release": (4.0, 1e-5)}
    # The non-private arm is kept from the server; the paper's encoder has no guarantee.
    assert check("experiment=feddp_pald") == {"fusion_encoder": (math.inf, 0.0), "release": (4.0, 1e-5)}


def test_stages_of_the_auditor_do_not_spend() -> None:
    prices = check("experiment=feddp_pald/dp_sgd", "+stages.release.as_auditor=true", *_auditors())
    assert "release" not in prices


@pytest.mark.parametrize("stage", ["fusion_encoder", "encode"])
def test_calling_a_stage_the_auditor_s_does_not_get_a_release_past_the_budget(stage: str) -> None:
    with pytest.raises(PrivateInputError, match=rf"'{stage}', which the auditor made"):
        check("experiment=feddp_pald", f"+stages.{stage}.as_auditor=true", "privacy.budget=4")


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        # Norms in bf16 are off by up to 0.4 %, and so is the bound on the gradient of one record.
        ("trainer=h100", r"precision=bf16-mixed .* trainer\.precision=32-true"),
        ("trainer.precision=16-mixed", r"precision=16-mixed .* trainer\.precision=32-true"),
        ("+trainer.gradient_clip_val=1.0", r"gradient_clip_val=1\.0 .* privacy\.encoder\.clip_norm"),
        ("+trainer.accumulate_grad_batches=2", r"accumulate_grad_batches=2 .* federated\.batch_size"),
    ],
)
def test_a_step_is_what_is_paid_for_or_the_run_is_refused(word: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=rf"stages\.fusion_encoder .* trainer\.{remedy}"):
        check("experiment=feddp_pald", "privacy=dp_sgd", word)
    assert check("experiment=feddp_pald", word)  # nothing is paid for there
    assert check("experiment=feddp_pald", "privacy=dp_sgd", "trainer.precision=64-true")
    assert check("experiment=feddp_pald/dp_sgd", "trainer=h100")  # keeps its own precision


def _auditors() -> tuple[str, ...]:
    return tuple(f"+stages.{name}.as_auditor=true" for name in ("mix", "latent_ddpm", "synthesize"))


def test_a_run_over_budget_is_refused_before_data_are_looked_for() -> None:
    with pytest.raises(BudgetError, match=r"fusion_encoder 8 \+ release 4 = 12"):
        check("experiment=feddp_pald/dp_sgd", "privacy.budget=11.9")
    assert check("experiment=feddp_pald/dp_sgd", "privacy.budget=12")


def test_a_release_without_guarantee_cannot_keep_a_budget() -> None:
    for words in (
        ("experiment=feddp_pald",),
        ("experiment=feddp_pald/dp_sgd", "privacy.encoder.epsilon=.inf"),
    ):
        with pytest.raises(BudgetError, match="fusion_encoder releases without guarantee"):
            check(*words, "privacy.budget=100")


@pytest.mark.parametrize("value", ["0", "-1", "much", ".nan"])
def test_an_impossible_budget_is_refused_by_its_key(value: str) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.budget"):
        check("experiment=feddp_pald", f"privacy.budget={value}")


@pytest.mark.parametrize("value", [".inf", "'100'", "1e2"])
def test_a_budget_is_a_number_however_it_is_written(value: str) -> None:
    assert check("experiment=feddp_pald/dp_sgd", f"privacy.budget={value}")
