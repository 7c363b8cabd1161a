"""Composing and checking configs: whatever is wrong is one message with key, value and remedy."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from fedsynth import composition
from fedsynth.composition import (
    check_keys,
    compose_config,
    expand_sweep,
    experiments,
    new_run_id,
    resolved,
    source_of,
    sweep_parameters,
)
from fedsynth.errors import ConfigError, FedSynthError, PrivateInputError
from fedsynth.run import Run

EXPERIMENT = "experiment=feddp_pald"
CONFIGS = composition.CONFIG_DIR
# Other groups than these speak for themselves: experiments, sweeps, stages, and what the user keeps local.
GROUPS = (
    "data", "debug", "diffusion", "evaluation", "federated", "federated_schedule", "logger", "model", "paper", "paths",
    "schedule", "speech_model", "strategy", "trainer",
)  # fmt: skip
# Those of experiments on labelled images, which bring them themselves.
IMAGE_GROUPS = (
    "codec", "image_classifier", "image_encoder", "image_network", "image_sampler", "reidentification", "selection",
)  # fmt: skip
OPTIONS = {
    group: sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))
    for group in (*GROUPS, *IMAGE_GROUPS)
}
# Data of clients whose classifiers are compared have a classifier of their own; the others are labelled images.
SYSTEMS_DATA = sorted(path.stem for path in (CONFIGS / "stage" / "classifier").glob("*.yaml"))
IMAGE_DATA = [name for name in OPTIONS["data"] if name not in SYSTEMS_DATA]
# Weights of networks that come with no package are named, or their download is allowed, by the user.
ALLOWED = {
    f"image_encoder={name}": ["image_encoder.allow_download=true"] for name in ("inception", "swav", "timm")
}


def check(*overrides: str) -> Run:
    """The run, if its settings are accepted."""
    run = Run(compose_config(overrides))
    run.check()
    return run


@pytest.fixture(scope="module")
def composed() -> DictConfig:
    return compose_config([EXPERIMENT])


def changed(config: DictConfig, key: str, value: Any) -> DictConfig:
    """The config with one value changed, as ``key=value`` on the command line would."""
    copy = config.copy()
    OmegaConf.set_struct(copy, False)
    OmegaConf.update(copy, key, value)
    return copy


# -- what there is works -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", experiments())
def test_every_experiment_composes_checks_and_bears_its_own_name(name: str) -> None:
    config = compose_config([f"experiment={name}"])
    Run(config).check()
    assert config.experiment_name == name


@pytest.mark.parametrize("data", SYSTEMS_DATA)
@pytest.mark.parametrize("name", [name for name in experiments() if name.startswith("fedmpa")])
def test_every_comparison_of_systems_runs_on_speech_and_on_x_rays(name: str, data: str) -> None:
    run = check(f"experiment={name}", f"data={data}")
    stages = run.config["stages"]
    kinds = {stage["stage"] for stage in stages.values()}
    other = {"clients", "fusion_encoder"}, {"speech_clients", "speech_classifier"}
    wanted, unwanted = other if data == "xray_ecg" else other[::-1]
    assert wanted <= kinds
    assert not unwanted & kinds
    default = compose_config([f"experiment={name}"]).stages
    assert set(stages) == set(default)


HEADER = ("Command:", "Time:", "Expected:")


@pytest.mark.parametrize("name", experiments())
def test_every_experiment_says_what_it_is_how_to_run_it_and_what_to_expect(name: str) -> None:
    lines = (CONFIGS / "experiment" / f"{name}.yaml").read_text().splitlines()
    assert lines[0] == "# @package _global_"
    assert lines[1].startswith(("# Paper:    ", "# Beyond:   "))
    head = [line for line in lines[1:] if line.startswith("# ")]
    for title in HEADER:
        assert any(line.startswith(f"# {title}") for line in head), title
    said = " ".join(head)
    assert f"experiment={name}" in said or f"make reproduce paper={name.partition('/')[0]}" in said


# What these choose depends on each other: FedBN needs BatchNorm, DP-SGD must not have it; or belongs to other
# experiments: classifiers of speech, systems with strategies of their own.
DEPENDENT_GROUPS = ("data", "model", "federated", "federated_schedule", "privacy", "speech_model", "strategy")
FREE = {group: OPTIONS[group] for group in GROUPS if group not in DEPENDENT_GROUPS}


@pytest.mark.parametrize("number", range(max(map(len, FREE.values()))))
def test_every_option_of_every_group_composes_and_checks(number: int) -> None:
    # The first options of all groups together, then the second ones, … A lone process may plan for several.
    run = check(
        EXPERIMENT,
        "plan=true",
        *(f"{group}={names[number % len(names)]}" for group, names in FREE.items()),
    )
    assert run.config["stages"]


@pytest.mark.parametrize(
    "option", [f"{group}={name}" for group in ("model", "federated") for name in OPTIONS[group]]
)
def test_every_option_for_the_encoder_composes_and_checks_by_itself(option: str) -> None:
    if option in ("federated=fedproto", "federated=local"):
        with pytest.raises(ConfigError, match="must be trained into one model"):
            check(EXPERIMENT, option)
    else:
        assert check(EXPERIMENT, option).config["stages"]


@pytest.mark.parametrize("data", [name for name in OPTIONS["data"] if name != "xray_ecg"])
def test_data_that_an_experiment_cannot_use_are_refused_with_those_it_can(data: str) -> None:
    lacking = "label_rule" if data in IMAGE_DATA else "image_size"
    with pytest.raises(
        ConfigError, match=rf"stages\.clients\.{lacking}.*data\.{lacking}.*data=xray_ecg"
    ) as caught:
        check(EXPERIMENT, f"data={data}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", SYSTEMS_DATA)
def test_data_that_are_no_labelled_images_are_refused_with_those_that_are(data: str) -> None:
    with pytest.raises(
        ConfigError, match=r"stages\.images\.dataset: .*Say .*data=kermany.*data=pneumoniamnist"
    ):
        check("experiment=pso_secure", f"data={data}")


# A filtered set that nothing filters must bear another name; see below.
IMAGE_OPTIONS = [f"{group}={name}" for group in IMAGE_GROUPS for name in OPTIONS[group]]


@pytest.mark.parametrize("option", [option for option in IMAGE_OPTIONS if option != "selection=none"])
def test_every_option_for_labelled_images_composes_and_checks_by_itself(option: str) -> None:
    # Its four levels halve latents three times: 28 pixels do not go into eighths.
    size = ("data.image_size=32",) if option == "image_network=edm2_xs" else ()
    config = check("experiment=pso_secure", option, *size, *ALLOWED.get(option, ())).config
    group, _, name = option.partition("=")
    values = OmegaConf.to_container(OmegaConf.load(CONFIGS / group / f"{name}.yaml"), resolve=True)
    assert isinstance(values, dict)
    expected = {**values, "allow_download": True} if option in ALLOWED else values
    assert {key: config[group][key] for key in expected} == expected


def test_a_set_that_nothing_filters_is_not_called_filtered() -> None:
    with pytest.raises(ConfigError, match=r"filtered\.arm is .*filter=none filters nothing"):
        check("experiment=pso_secure", "selection=none")
    arm = "stages.{}diadm_features_filtered.arm=all_of_them"
    check("experiment=pso_secure", "selection=none", *(arm.format(kind) for kind in ("", "tstr_", "audit_")))


@pytest.mark.parametrize("data", IMAGE_DATA)
def test_labelled_images_of_every_kind_are_checked(data: str) -> None:
    config = check("experiment=pso_secure", f"data={data}").config
    assert config["stages"]["images"]["dataset"] == config["data"]["dataset"]


@pytest.mark.parametrize("option", ALLOWED)
def test_weights_that_no_package_brings_are_not_fetched_without_leave(option: str) -> None:
    with pytest.raises(ConfigError, match=r"image_encoder\.weights.*image_encoder\.allow_download=true"):
        check("experiment=pso_secure", option)


@pytest.mark.parametrize(
    "option",
    [
        *(f"strategy@stages.fedavg.strategy={name}" for name in OPTIONS["strategy"] if name != "fedbn"),
        *(f"federated_schedule@federated={name}" for name in OPTIONS["federated_schedule"]),
        *(f"speech_model={name}" for name in OPTIONS["speech_model"]),
    ],
)
def test_every_option_for_a_classifier_of_speech_composes_and_checks(option: str) -> None:
    group, _, name = option.partition("=")
    config = check("experiment=fedmpa", option).config
    values = OmegaConf.to_container(OmegaConf.load(CONFIGS / group.partition("@")[0] / f"{name}.yaml"))
    assert isinstance(values, dict)
    found = {
        "strategy": config["stages"]["fedavg"].get("strategy"),
        "federated_schedule": config["federated"],
        "speech_model": config["speech_model"],
    }[group.partition("@")[0]]
    assert {key: found[key] for key in values} == values


@pytest.mark.parametrize("path", sorted((CONFIGS / "privacy").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_privacy_option_composes_and_those_without_noise_stay_from_the_server(path: Path) -> None:
    # Noise on prototypes needs clients that send some.
    words = ["federated=fedmpa"] if path.stem == "dp_prototypes" else []
    config = compose_config([EXPERIMENT, f"privacy={path.stem}", *words])
    if config.privacy.epsilon < float("inf"):
        Run(config).check()
    else:
        with pytest.raises(PrivateInputError, match=r"stages\.mix .*'release', which is private"):
            Run(config).check()


@pytest.mark.parametrize(
    "path", sorted((CONFIGS / "hparams_search").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_search_expands_to_several_configs_that_check(path: Path) -> None:
    combinations = list(expand_sweep([EXPERIMENT, f"hparams_search={path.stem}"]))
    assert len(combinations) > 1
    check(*combinations[0])


def test_every_group_is_tested_here() -> None:
    found = {path.name for path in CONFIGS.iterdir() if path.is_dir()}
    assert found == {
        *OPTIONS,
        "privacy",
        "experiment",
        "hparams_search",
        "stage",
        "hydra",
        "local",
        "systems",
    }


def test_every_kind_of_stage_has_its_config_file() -> None:
    stages = CONFIGS.parent / "src" / "fedsynth" / "stages"
    kinds = {path.parent.name for path in stages.glob("*/spec.py")}
    files = {path.stem for path in (CONFIGS / "stage").glob("*.yaml")}
    assert files == {*kinds, "fusion_system"}, "a fusion_encoder that brings no strategy"


# -- typos ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["stages.release.epsilonn=1"], ["stages.release.epsilonn", "Did you mean stages.release.epsilon?"]),
        (["privacy.epsilo=1"], ["privacy.epsilo", "Did you mean privacy.epsilon?"]),
        (["sed=1"], ["sed is not a key", "Did you mean seed?"]),
        (["trainr=gpu"], ["trainr is not a key", "Did you mean trainer?"]),
        (["+privacy.epsilonn=1"], ["privacy.epsilonn", "Did you mean 'epsilon'?"]),
        (["trainer=gpus"], ["trainer=gpus", "Did you mean gpu?", "cpu, ddp"]),
        (
            ["privacy=off"],
            ["privacy=off", "There are: dp_pma, dp_prototypes, dp_sgd, noise_corrected, none, paid"],
        ),
        (["seed"], ["'seed' is not an override", "key=value"]),
        (["seed=[1"], ["'seed=[1' is not an override", "key=value"]),
        (["path=3"], ["path is not a key", "See all keys with"]),
        (["paths.x=1"], ["paths.x is not a key", "Did you mean paths."]),
        (["logger=[]"], ["logger is missing", "logger=none"]),
        (["privacy=null"], ["cannot be composed", "must be a string or a list"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_typo_is_refused_with_the_key_and_a_remedy(overrides: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check(EXPERIMENT, *overrides)
    message = str(caught.value)
    assert [part for part in parts if part not in message] == []
    assert "\n" not in message


@pytest.mark.parametrize(
    ("key", "value", "parts"),
    [
        ("stages.mix.sed", 1, ["stages.mix.sed", "Did you mean 'seed'?"]),
        ("trainer.max_epoch", 1, ["trainer.max_epoch ", "Did you mean 'max_epochs'?"]),
        ("color", "red", ["color is not a known key"]),
        ("stages.audit.stage", "adit", ["stages.audit.stage", "'adit'", "Known kinds: audit"]),
        ("stages.mix.inputs.release", "releas", ["stages.mix.inputs.release", "'releas'", "'release'"]),
        ("only", ["mixx"], ["only names no stage", "'mixx'", "mix"]),
        ("force", "mixx", ["force names no stage", "'mixx'"]),
        ("from", "mixx", ["from names no stage", "'mixx'"]),
    ],
)
def test_a_mistyped_name_is_refused_with_the_key_and_a_remedy(
    composed: DictConfig, key: str, value: Any, parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        Run(changed(composed, key, value)).check()
    assert [part for part in parts if part not in str(caught.value)] == []


def test_an_unknown_experiment_is_refused_with_the_nearest_and_all() -> None:
    with pytest.raises(ConfigError) as caught:
        check("experiment=fedp_pald")
    assert "experiment=fedp_pald: there is no 'fedp_pald'" in str(caught.value)
    assert "Did you mean feddp_pald?" in str(caught.value)
    assert all(name in str(caught.value) for name in experiments())


@pytest.mark.parametrize("overrides", [[], ["seed=1"]])
def test_no_experiment_is_one_message_with_all_there_are(overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"no experiment chosen.*experiment=NAME.*feddp_pald"):
        check(*overrides)


def test_an_empty_experiment_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"experiment=: .*There are: feddp_pald"):
        check("experiment=")


# -- values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "parts"),
    [
        (
            "privacy.epsilon",
            -1,
            ["stages.release.epsilon must be > 0, got -1", "comes from privacy.epsilon", ".inf"],
        ),
        ("privacy.epsilon", 0, ["must be > 0, got 0", "privacy.epsilon"]),
        ("privacy.epsilon", "small", ["wrong type", "'small'", "privacy.epsilon", ".inf"]),
        ("stages.release.epsilon", -1, ["stages.release.epsilon must be > 0, got -1"]),
        ("privacy.delta", 1, ["must be > 0 and < 1, got 1", "privacy.delta", "1e-5"]),
        ("privacy.delta", 0, ["must be > 0 and < 1, got 0", "privacy.delta"]),
        ("privacy.num_shards", 0, ["num_shards must be ≥ 1, got 0", "privacy.num_shards"]),
        ("data.num_clients", 0, ["num_clients must be ≥ 1, got 0", "data.num_clients", "paper uses 5"]),
        ("data.num_clients", "two", ["wrong type", "'two'", "wanted int", "data.num_clients"]),
        ("data.num_clients", 2.5, ["wrong type", "2.5", "data.num_clients"]),
        ("data.dirichlet_alpha", 0, ["dirichlet_alpha must be > 0, got 0", "data.dirichlet_alpha"]),
        ("data.dirichlet_alpha", -0.5, ["must be > 0, got -0.5"]),
        ("data.split_fractions", [0.5, 0.1, 0.1], ["sum to 1", "[0.5, 0.1, 0.1]", "data.split_fractions"]),
        ("data.split_fractions", [0.9, 0.2, -0.1], ["split_fractions must be > 0", "data.split_fractions"]),
        ("data.source", "fake", ["data.source must be one of auto, real, simulated, got 'fake'"]),
        ("data.image_size", 29, ["data.image_size must be one of 28, 64", "got 29"]),
        ("data.download", "nope", ["data.download", "'nope'"]),
        ("federated.rounds", 0, ["trainer.max_epochs must be ≥ 1, got 0", "federated.rounds"]),
        ("federated.local_epochs", 0, ["local_epochs must be", "got 0", "federated.local_epochs"]),
        ("federated.participation", 0, ["participation must be", "federated.participation"]),
        ("federated.participation", 1.5, ["participation must be", "1.5"]),
        ("federated.strategy", "fedsum", ["strategy", "'fedsum'"]),
        ("federated.strategy.name", "fedsum", ["strategy.name must be one of fedavg, fedbn", "got 'fedsum'"]),
        ("schedule.pretrain_epochs", -1, ["max_epochs must be ≥ 1, got -1", "schedule.pretrain_epochs"]),
        ("evaluation.classifier_seeds", [], ["classifier_seeds must be", "[]"]),
        ("evaluation.classifier_seeds", [1, 1], ["classifier_seeds must be different", "[1, 1]"]),
        (
            "diffusion.label_dropout",
            1.5,
            ["label_dropout must be ≥ 0 and ≤ 1, got 1.5", "diffusion.label_dropout"],
        ),
        ("diffusion.beta_schedule", "sine", ["beta_schedule must be one of linear, cosine, got 'sine'"]),
        ("model.latent_dim", 0, ["latent_dim must be ≥", "got 0", "model.latent_dim"]),
        ("seed", "abc", ["seed has the wrong type", "'abc'", "wanted int"]),
        ("seed", -1, ["seed must be ≥ 0", "got -1"]),
        ("plan", "off", ["plan must be true or false, got 'off'"]),
        (
            "trainer.num_threads",
            -2,
            ["trainer.num_threads must be ≥ 0, got -2", "0 leaves the number to torch"],
        ),
        ("trainer.accelerator", "abacus", ["trainer.accelerator must be one of", "'abacus'"]),
        ("trainer.devices", 2, ["trainer.devices=2", "torchrun", "make train"]),
        ("paths.log_dir", "", ["paths.log_dir is empty", "LOG_DIR"]),
        ("paths.log_dir", None, ["paths.log_dir has the wrong type", "LOG_DIR"]),
        ("paths.log_dir", 3, ["paths.log_dir must be a folder, got 3"]),
        ("data.dir", 3, ["data.dir must be a folder, got 3"]),
        ("run_id", "a/b", ["run_id must be the name of one folder, got 'a/b'", "RUN_ID"]),
        ("run_id", "..", ["run_id must be the name of one folder, got '..'"]),
        ("run_id", "", ["run_id must be the name of one folder, got ''"]),
        ("run_id", "a\n", ["run_id must be the name of one folder"]),
        ("data.files", 3, ["data.files must hold file names", "got 3", "official"]),
        ("data.files.chestmnist", 3, ["data.files.chestmnist must be a file name", "got 3"]),
        ("data.files.chestmnist", [3], ["data.files.chestmnist must be a file name", "got [3]"]),
        ("data.files.chestmnist", [], ["data.files.chestmnist must be a file name", "got []"]),
        ("data.files.chestmist", "x", ["data.files.chestmist is not a known key", "'chestmnist'"]),
        ("only", 3, ["only must name stages, got 3", "only=[NAME]", "mix"]),
        ("only", True, ["only must name stages, got True"]),
        ("force", True, ["force must name stages, got True"]),
        ("logger", 3, ["logger must hold one section per logger, got 3"]),
        ("logger.csv.flush_every_n_steps", "abc", ["logger.csv.flush_every_n_steps must be", "'abc'"]),
        ("schedule.pretrain_epochs", None, ["pretrain_xray.trainer.max_epochs must be ≥ 1, got None"]),
        ("stages.mix.trainer", {"max_epochs": 1}, ["stages.mix.trainer", "trains nothing", "Remove"]),
        ("stages.mix.as_auditor", "no", ["stages.mix.as_auditor must be true or false, got 'no'"]),
        ("stages.mix.inputs", "release", ["stages.mix.inputs must be a mapping", "'release'"]),
        ("stages.mix", None, ["stages.mix.stage is missing"]),
        ("trainer", None, ["trainer must be a section", "None"]),
        ("data", 3, ["stages.clients.", "data"]),
    ],
    ids=lambda value: str(value) if not isinstance(value, list) else "",
)
def test_an_impossible_value_is_refused_with_key_value_and_source(
    composed: DictConfig, key: str, value: Any, parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        Run(changed(composed, key, value)).check()
    message = str(caught.value)
    assert [part for part in parts if part not in message] == []
    assert "\n" not in message


def test_a_lone_name_selects_like_a_list_of_one(composed: DictConfig) -> None:
    for key in ("only", "force"):
        assert getattr(Run(changed(composed, key, "mix")).selection, key) == ("mix",)
        assert getattr(Run(changed(composed, key, ["mix"])).selection, key) == ("mix",)


# -- files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the config folder, to be spoiled."""
    copy = tmp_path / "configs"
    shutil.copytree(CONFIGS, copy)
    monkeypatch.setattr(composition, "CONFIG_DIR", copy)
    composition._keys_of.cache_clear()
    return copy


SPOILED = {
    "unknown setting of a stage": (
        "stages: {release: {epsilonn: 1}}",
        r"stages\.release\.epsilonn.*'epsilon'",
    ),
    "unknown key of a group": ("privacy: {epsilonn: 1}", r"privacy\.epsilonn is not a known key.*'epsilon'"),
    "unknown key at the top": ("sed: 43", r"sed is not a known key.*'seed'"),
    "unknown trainer argument": ("trainer: {max_epoch: 1}", r"trainer\.max_epoch is not.*'max_epochs'"),
    "unknown kind": ("stages: {more: {stage: nothing}}", r"stages\.more\.stage must name.*'nothing'"),
    "impossible value": ("privacy: {delta: 1.0}", r"delta must be.*got 1\.0.*comes from privacy\.delta"),
    "infinity as a word": ("data: {num_clients: inf}", r"num_clients has the wrong type.*'inf'"),
    "reference to nothing": ("seed: ${nothing.here}", r"seed: .*nothing\.here"),
    "unset variable": ("seed: ${oc.env:FEDSYNTH_NOT_SET}", r"seed: .*FEDSYNTH_NOT_SET"),
    "no stages": ("stages: null", r"experiment spoiled has no stages"),
    "broken YAML": ("seed: [1", r"not valid YAML: .*spoiled"),
    "key given twice": ("seed: 1\nseed: 2", r"not valid YAML: .*seed"),
}


@pytest.mark.parametrize(("text", "message"), SPOILED.values(), ids=SPOILED)
def test_a_mistake_in_an_experiment_file_is_refused(configs: Path, text: str, message: str) -> None:
    head = "# @package _global_\ndefaults:\n  - feddp_pald\n  - _self_\nexperiment_name: spoiled\n"
    (configs / "experiment" / "spoiled.yaml").write_text(head + text + "\n")
    with pytest.raises(ConfigError, match=message) as caught:
        check("experiment=spoiled")
    assert "\n" not in str(caught.value)


def test_an_empty_experiment_file_is_refused(configs: Path) -> None:
    (configs / "experiment" / "empty.yaml").write_text("# @package _global_\n")
    with pytest.raises(ConfigError, match=r"no experiment chosen, or one without stages"):
        check("experiment=empty")


def test_a_file_of_the_user_s_own_is_read_last(configs: Path) -> None:
    (configs / "local" / "default.yaml").write_text("# @package _global_\nprivacy: {epsilon: 2.0}\n")
    assert compose_config([EXPERIMENT]).privacy.epsilon == 2.0


def test_a_key_that_one_option_of_a_group_introduces_is_known(configs: Path) -> None:
    text = (configs / "privacy" / "dp_pma.yaml").read_text()
    (configs / "privacy" / "more.yaml").write_text(text + "temperature: 1.0\n")
    assert check(EXPERIMENT, "privacy=more").config["privacy"]["temperature"] == 1.0


def test_without_config_files_the_message_says_how_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(composition, "CONFIG_DIR", tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"no config folder at .*gone.*pip install -e"):
        compose_config([EXPERIMENT])


def test_known_keys_pass(composed: DictConfig) -> None:
    values = resolved(composed)
    check_keys(values)
    with pytest.raises(ConfigError, match=r"evaluation\.nearst_k.*'nearest_k'"):
        check_keys({**values, "evaluation": {"nearst_k": 1}})


def test_infinity_may_be_written_as_in_yaml(composed: DictConfig) -> None:
    config = compose_config([EXPERIMENT, "diffusion.learning_rate=.inf"])
    with pytest.raises(ConfigError, match=r"learning_rate must be .*got inf.*comes from diffusion"):
        Run(config).check()


def test_an_interrupt_while_composing_is_no_fault_of_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise HydraException("") from error

    monkeypatch.setattr(composition, "compose", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compose_config([EXPERIMENT])


def test_sweeper_parameters_as_a_mapping_are_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"hydra\.sweeper\.params=.*key=value,value.*hparams_search"):
        list(expand_sweep([EXPERIMENT, 'hydra.sweeper.params={foo:"1,2"}']))


def test_a_runs_folder_that_is_a_file_is_refused(composed: DictConfig, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("x")
    config = changed(composed, "paths.log_dir", str(tmp_path))
    with pytest.raises(ConfigError, match=r"runs is no folder.*LOG_DIR"):
        Run(config).check()


# -- references, sweeps, names -------------------------------------------------------------------------------


def test_the_source_of_a_value_is_the_key_it_is_interpolated_from(composed: DictConfig) -> None:
    assert source_of(composed, "stages.release.epsilon") == "privacy.epsilon"
    assert source_of(composed, "stages.fusion_encoder.trainer.max_epochs") == "federated.rounds"
    assert source_of(composed, "stages.release_nonprivate.epsilon") == ""
    assert source_of(composed, "stages.nothing.epsilon") == ""
    assert source_of(composed, "seed") == ""


def test_a_sweep_is_the_product_of_its_values() -> None:
    expanded = list(expand_sweep([EXPERIMENT, "seed=1,2", "privacy.epsilon=1,2,4", "data.num_clients=3"]))
    assert expanded == [
        [EXPERIMENT, f"seed={seed}", f"privacy.epsilon={epsilon}", "data.num_clients=3"]
        for seed, epsilon in product((1, 2), (1, 2, 4))
    ]


def test_a_sweep_over_ranges_and_choices_is_expanded() -> None:
    assert list(expand_sweep(["seed=range(1,4)"])) == [["seed=1"], ["seed=2"], ["seed=3"]]
    assert list(expand_sweep(["seed=choice(7,9)"])) == [["seed=7"], ["seed=9"]]


def test_a_list_is_one_value_and_no_sweep() -> None:
    assert list(expand_sweep(["evaluation.classifier_seeds=[1,2]"])) == [
        ["evaluation.classifier_seeds=[1,2]"]
    ]


def test_a_sweep_in_a_config_file_is_expanded_and_typed_values_win() -> None:
    search = "hparams_search=epsilon"
    assert sweep_parameters([EXPERIMENT]) == {}
    assert list(sweep_parameters([EXPERIMENT, search])) == ["privacy.epsilon"]
    words = list(expand_sweep([EXPERIMENT, search, "privacy.delta=0.1,0.2"]))
    assert words[0] == ["privacy.epsilon=1", EXPERIMENT, search, "privacy.delta=0.1"]
    assert [line[0] for line in words[::2]] == [f"privacy.epsilon={budget}" for budget in (1, 2, 4, 8)]
    typed = next(expand_sweep([EXPERIMENT, search, "privacy.epsilon=3"]))
    assert compose_config(typed).privacy.epsilon == 3


def test_run_identifiers_differ_unless_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({new_run_id() for _ in range(20)}) == 20
    monkeypatch.setenv("RUN_ID", "mine")
    assert new_run_id() == "mine"
    assert compose_config([EXPERIMENT]).run_id == "mine"


def test_every_refusal_is_an_error_the_app_prints() -> None:
    assert issubclass(ConfigError, FedSynthError)
    assert issubclass(PrivateInputError, FedSynthError)
