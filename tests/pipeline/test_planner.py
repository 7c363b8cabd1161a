"""Plans: order, keys, marks, and the boundary between clients and server."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
from bench import SOURCES, chain, plan, toy
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.errors import ConfigError, PrivateInputError
from fedsynth.pipeline import planner
from fedsynth.pipeline.planner import PLACEMENT, RESERVED, Source
from fedsynth.pipeline.stage import Sensitivity, Side
from fedsynth.pipeline.trainer import TrainerSettings, check_trainer


def keys(*args: Any, **options: Any) -> dict[str, str]:
    return {planned.name: planned.key for planned in plan(*args, **options)}


def marks(stages: dict[str, Any]) -> dict[str, Sensitivity]:
    return {planned.name: planned.sensitivity for planned in plan(stages)}


# -- order ---------------------------------------------------------------------------------------------------


@given(st.permutations(list(chain())))
def test_suppliers_come_first_whatever_the_order_of_the_config(names: list[str]) -> None:
    stages = chain()
    assert [planned.name for planned in plan({name: stages[name] for name in names})] == list(stages)


def test_stages_without_a_relation_keep_the_order_of_the_config() -> None:
    assert list(keys({name: toy("constant") for name in "cab"})) == ["c", "a", "b"]


@pytest.mark.parametrize("supplier", ["total", "again"])
def test_a_cycle_is_refused(supplier: str) -> None:
    again = toy("total", inputs={"release": "total"})
    stages = chain(total={"inputs": {"release": "publish", "extra": supplier}}) | {"again": again}
    with pytest.raises(ConfigError, match=r"form a cycle: total, again"):
        plan(stages)


# -- keys ----------------------------------------------------------------------------------------------------


def test_keys_are_those_of_the_last_run() -> None:
    assert keys(chain()) == keys(chain())
    assert all(len(key) == 64 for key in keys(chain()).values())


@given(st.permutations(list(chain())))
def test_keys_do_not_depend_on_the_order_of_stages(names: list[str]) -> None:
    stages = chain()
    assert keys({name: stages[name] for name in names}) == keys(stages)


def test_keys_do_not_depend_on_the_order_of_settings() -> None:
    assert keys({name: dict(reversed(config.items())) for name, config in chain().items()}) == keys(chain())


def test_settings_that_cannot_change_a_result_keep_the_key() -> None:
    assert keys(chain(measure={"behavior": "fail"})) == keys(chain())


def test_equal_floats_and_integers_give_one_key() -> None:
    assert keys(chain(measure={"value": 1})) == keys(chain(measure={"value": 1.0}))


def test_a_setting_changes_its_stage_and_all_that_depend_on_it() -> None:
    before, after = keys(chain()), keys(chain(publish={"value": 2.0}))
    assert {name for name in before if before[name] != after[name]} == {"publish", "total"}


def test_another_supplier_with_another_result_changes_the_key() -> None:
    stages = chain() | {"loud": toy("publish", value=9.0, inputs={"numbers": "measure"})}
    assert (
        keys(stages)["total"] != keys(stages | {"total": toy("total", inputs={"release": "loud"})})["total"]
    )


def test_a_supplier_counts_by_its_result_not_by_its_name() -> None:
    renamed = {
        "numbers": toy("measure"),
        "publish": toy("publish", inputs={"numbers": "numbers"}),
        "total": toy("total", inputs={"release": "publish"}),
    }
    assert keys(renamed)["total"] == keys(chain())["total"]


def test_the_same_artifact_in_another_role_is_another_key() -> None:
    def stages(**inputs: str) -> dict[str, Any]:
        twins = {"one": toy("constant", value=1.0), "two": toy("constant", value=2.0)}
        return twins | {"total": toy("total", inputs=inputs)}

    assert (
        keys(stages(release="one", extra="two"))["total"] != keys(stages(release="two", extra="one"))["total"]
    )


def test_an_optional_input_left_out_or_null_is_one_key() -> None:
    null = chain(total={"inputs": {"release": "publish", "extra": None}})
    assert keys(null) == keys(chain())


def test_data_of_another_digest_change_every_key_that_depends_on_them() -> None:
    stages = chain() | {"apart": toy("constant")}
    before, after = keys(stages), keys(stages, sources={"mitdb": Source("other digest", private=True)})
    assert {name for name in before if before[name] != after[name]} == {"measure", "publish", "total"}


@pytest.mark.parametrize("sources", [{}, {"mitdb": Source("", private=True)}], ids=["unnamed", "no digest"])
def test_keys_wait_for_data_that_are_not_there(sources: dict[str, Source]) -> None:
    stages = chain() | {"apart": toy("constant")}
    waiting = keys(stages, sources=sources)
    assert waiting == {"measure": "", "publish": "", "total": "", "apart": keys(stages)["apart"]}


def test_an_edit_of_the_code_changes_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys(chain())
    monkeypatch.setattr(planner, "code_digest", lambda module: f"edited {module}")
    assert set(keys(chain()).values()).isdisjoint(before.values())


PLACES = {
    "accelerator": "gpu", "devices": 4, "num_nodes": 2, "strategy": "ddp", "sync_batchnorm": True,
    "num_threads": 7, "benchmark": True, "enable_progress_bar": True, "enable_model_summary": True,
    "log_every_n_steps": 3, "profiler": "simple", "use_distributed_sampler": True,
}  # fmt: skip


@pytest.mark.parametrize("argument", PLACEMENT)
def test_where_a_stage_trains_does_not_change_its_key(argument: str) -> None:
    stages = {"train": toy("train")}
    assert keys(stages, {argument: PLACES[argument]}) == keys(stages)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("fast_dev_run", True),
        ("limit_train_batches", 3),
        ("overfit_batches", 1),
        ("max_epochs", 2),
        ("precision", "bf16-mixed"),
        ("deterministic", True),
    ],
)
def test_how_a_stage_trains_changes_its_key_and_no_computed_one(argument: str, value: object) -> None:
    stages = {"train": toy("train"), **chain()}
    before, after = keys(stages), keys(stages, {argument: value})
    assert {name for name in before if before[name] != after[name]} == {"train"}


def test_a_schedule_counts_the_same_wherever_it_is_written() -> None:
    own = {"train": toy("train", trainer={"max_epochs": 3})}
    assert keys(own, {"max_epochs": 9}) == keys({"train": toy("train")}, {"max_epochs": 3})


# -- marks and the boundary ----------------------------------------------------------------------------------


def test_marks_follow_the_data() -> None:
    assert marks(chain()) == {
        "measure": Sensitivity.PRIVATE,
        "publish": Sensitivity.RELEASED,
        "total": Sensitivity.RELEASED,
    }


def test_a_stage_that_reads_private_records_is_private_unless_it_says_otherwise() -> None:
    # `measure` declares nothing: forgetting a `yields` must not make private numbers public.
    assert marks({"measure": toy("measure")})["measure"] is Sensitivity.PRIVATE
    public = plan({"measure": toy("measure")}, sources={"mitdb": Source("d", private=False)})
    assert public[0].sensitivity is Sensitivity.PUBLIC


def test_a_server_is_refused_a_private_input() -> None:
    with pytest.raises(PrivateInputError) as caught:
        plan(chain(total={"inputs": {"release": "measure"}}))
    message = str(caught.value)
    assert message.startswith("stages.total runs on the server but its input 'release' comes from 'measure'")
    assert "stages.total.as_auditor=true" in message


def test_a_server_is_refused_a_private_optional_input() -> None:
    with pytest.raises(PrivateInputError, match="'extra' comes from 'measure'"):
        plan(chain(total={"inputs": {"release": "publish", "extra": "measure"}}))


def test_a_server_is_refused_private_records() -> None:
    with pytest.raises(PrivateInputError, match=r"stages\.peek .* private records of mitdb"):
        plan({"peek": toy("peek")})


def test_records_nobody_vouches_for_are_private() -> None:
    with pytest.raises(PrivateInputError, match="mitdb"):
        plan({"peek": toy("peek")}, sources={})


def test_a_server_may_read_public_records() -> None:
    (planned,) = plan({"peek": toy("peek")}, sources={"mitdb": Source("d", private=False)})
    assert (planned.side, planned.sensitivity) == (Side.SERVER, Sensitivity.PUBLIC)


def test_a_release_without_noise_is_private_and_kept_from_the_server() -> None:
    with pytest.raises(PrivateInputError, match="'release' comes from 'publish'"):
        plan(chain(publish={"value": math.inf}))


def test_an_auditor_may_read_private_inputs_and_its_result_is_private() -> None:
    stages = chain(publish={"value": math.inf}, total={"as_auditor": True})
    planned = plan(stages)[-1]
    assert (planned.side, planned.sensitivity) == (Side.AUDITOR, Sensitivity.PRIVATE)


def test_nothing_an_auditor_makes_of_private_inputs_goes_back_to_a_server() -> None:
    stages = chain(publish={"value": math.inf}, total={"as_auditor": True})
    with pytest.raises(PrivateInputError, match=r"stages\.server .* comes from 'total'"):
        plan(stages | {"server": toy("total", inputs={"release": "total"})})


def test_an_auditor_cannot_launder_private_inputs_through_a_release() -> None:
    stages = chain(publish={"as_auditor": True})
    with pytest.raises(PrivateInputError, match=r"stages\.total .* comes from 'publish'"):
        plan(stages)


def test_an_auditor_cannot_launder_private_records() -> None:
    stages = {"peek": toy("peek", as_auditor=True), "total": toy("total", inputs={"release": "peek"})}
    with pytest.raises(PrivateInputError, match=r"stages\.total .* comes from 'peek'"):
        plan(stages)


def test_no_client_publishes_what_an_auditor_made_of_private_records() -> None:
    # Otherwise an encoder trained "by the auditor" would reach the server in a release, and cost nothing.
    with pytest.raises(PrivateInputError, match=r"stages\.publish .* 'measure', which the auditor made"):
        plan(chain(measure={"as_auditor": True}))
    stages = chain(publish={"as_auditor": True}, total={"as_auditor": True})
    assert [planned.side for planned in plan(stages)] == [Side.CLIENT, Side.AUDITOR, Side.AUDITOR]


def test_a_release_that_states_no_price_counts_as_one_without_guarantee() -> None:
    prices = {planned.name: planned.price for planned in plan(chain())}
    assert prices == {"measure": None, "publish": (math.inf, 0.0), "total": None}
    kept = plan(chain(publish={"value": math.inf}, total={"as_auditor": True}))
    assert kept[1].price is None


def test_an_auditor_of_released_inputs_keeps_their_mark() -> None:
    assert marks(chain(total={"as_auditor": True}))["total"] is Sensitivity.RELEASED


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": {"relaese": "publish"}}, r"stages\.total\.inputs\.relaese is not.*'release'"),
        ({"inputs": {"release": "publsh"}}, r"inputs\.release must name.*got 'publsh'.*'publish'"),
        ({"inputs": {"release": ["publish"]}}, r"inputs\.release must name a stage"),
        ({"inputs": {"release": "???"}}, r"stages\.total\.inputs\.release is missing"),
        ({"inputs": {"release": None}}, r"stages\.total\.inputs\.release is missing"),
        ({"inputs": {}}, r"stages\.total\.inputs\.release is missing"),
        ({"inputs": "publish"}, r"stages\.total\.inputs must be a mapping.*'publish'"),
        ({"trainer": 3}, r"stages\.total\.trainer must be a mapping.*3"),
        ({"as_auditor": "no"}, r"stages\.total\.as_auditor must be true or false, got 'no'"),
        ({"stage": None}, r"stages\.total\.stage is missing"),
        ({"stage": "totl"}, r"stages\.total\.stage must name a kind"),
        ({"valu": 1.0}, r"stages\.total\.valu is not a known key.*'value'"),
        ({"value": -1.0}, r"stages\.total\.value must be ≥ 0, got -1\.0\. Toys count from zero"),
    ],
)
def test_a_broken_stage_is_refused_with_its_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(chain(total=changes))


@pytest.mark.parametrize("config", [None, 3, "toystages.total", [], {}])
def test_a_stage_that_is_no_mapping_is_refused(config: Any) -> None:
    with pytest.raises(ConfigError, match=r"stages\.odd\.stage is missing"):
        plan({"odd": config})


# -- trainer arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_epoch": 3}, r"trainer\.max_epoch is not a known key.*'max_epochs'"),
        ({"max_epochs": 0}, r"trainer\.max_epochs must be ≥ 1, got 0"),
        ({"max_epochs": -1}, r"trainer\.max_epochs must be ≥ 1, got -1"),
        ({"max_epochs": "many"}, r"trainer\.max_epochs has the wrong type"),
        ({"accelerator": "gpus"}, r"trainer\.accelerator must be one of auto, cpu, gpu"),
        ({"precision": "8-bit"}, r"trainer\.precision must be one of"),
        ({"limit_train_batches": 0}, r"trainer\.limit_train_batches must be > 0"),
        ({"limit_val_batches": 2.5}, r"trainer\.limit_val_batches must be a whole number.*got 2\.5"),
        ({"devices": "abc"}, r"trainer\.devices must be a number ≥ 1 or auto, got 'abc'"),
        ({"devices": 0}, r"trainer\.devices must be a number ≥ 1 or auto, got 0"),
        ({"devices": -1}, r"trainer\.devices must be a number ≥ 1 or auto, got -1"),
        ({"max_epochs": None}, r"trainer\.max_epochs must be ≥ 1, got None"),
        ({"callbacks": []}, r"trainer\.callbacks is not a known key"),
        (None, r"trainer must be a mapping"),
    ],
)
def test_impossible_trainer_arguments_are_refused(values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_trainer(values, "trainer")


def test_a_stage_s_own_trainer_is_checked_under_its_own_key() -> None:
    with pytest.raises(ConfigError, match=r"stages\.train\.trainer\.max_epochs must be ≥ 1"):
        plan({"train": toy("train", trainer={"max_epochs": 0})})


def test_possible_trainer_arguments_pass() -> None:
    shares = {"limit_val_batches": 2, "limit_train_batches": 0.5, "overfit_batches": 1.0}
    for devices in (1, 2, "auto", None):
        check_trainer({"devices": devices, "max_epochs": 1, **shares}, "trainer")


def test_a_trainer_of_a_stage_that_trains_nothing_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"stages\.odd\.trainer is given.*Remove stages\.odd\.trainer\.max_epochs"
    ):
        plan({"odd": toy("constant", trainer={"max_epochs": 1})})


def test_every_trainer_argument_is_one_that_lightning_has() -> None:
    from lightning import Trainer

    ours = {"num_threads", "compile"}
    set_by_stages = {"logger", "callbacks", "default_root_dir", "enable_checkpointing", "plugins"}
    set_by_stages |= {"model_registry", "enable_autolog_hparams"}
    lightning = set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    assert set(TrainerSettings.__dataclass_fields__) - ours == lightning - set_by_stages


def test_placement_arguments_are_trainer_arguments_and_reserved_names_no_settings() -> None:
    assert set(PLACEMENT) <= set(TrainerSettings.__dataclass_fields__)
    assert set(PLACES) == set(PLACEMENT)
    assert "trainer" in RESERVED
    assert SOURCES["mitdb"].private
