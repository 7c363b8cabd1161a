"""Candidates are a function of seed, row and weight; what a kill leaves finished is not made again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_candidates import NUM_TRAIN, sampler_settings, tiny_images, tiny_inputs
from tiny_stages import equal, found, run_stage, stage_context
from torch import Tensor

from fedsynth.diffusion.edm_samplers import SamplerSettings, denoise_latents
from fedsynth.diffusion.lerp_guidance import GuidanceSettings
from fedsynth.errors import ArtifactError, ConfigError, DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.settings import build_settings
from fedsynth.pipeline.stage import Outcome
from fedsynth.stages.diadm.trained import conditions, open_denoiser
from fedsynth.stages.synthesize_images import pieces
from fedsynth.stages.synthesize_images import progress as progress_module
from fedsynth.stages.synthesize_images import run as stage_module
from fedsynth.stages.synthesize_images.networks import open_sampler
from fedsynth.stages.synthesize_images.progress import ImageProgress
from fedsynth.stages.synthesize_images.sampler import CandidateSampler
from fedsynth.stages.synthesize_images.spec import STAGE, SynthesizeImagesSettings


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Artifact]:
    return tiny_inputs(tmp_path)


def candidates(folder: Path, inputs: dict[str, Artifact], **changes: Any) -> Artifact:
    return run_stage("synthesize_images", sampler_settings(**changes), inputs, stage_context(folder))


def all_latents(made: Artifact) -> dict[str, Tensor]:
    shards = [made.load(name) for name in sorted(made.manifest["files"])]
    return {name: torch.cat([shard[name] for shard in shards]) for name in ("latent", "source")}


def sampler(
    folder: Path, inputs: dict[str, Artifact], batch_size: int = 64, needed: bool = True, **changes: Any
) -> CandidateSampler:
    return open_sampler(
        dataclasses.asdict(sampler_settings(**changes)),
        inputs,
        tiny_images()["train"],
        seed=1,
        batch_size=batch_size,
        context=stage_context(folder),
        may_need_guide=needed,
        key="stages.candidates.batch_size",
    )


def test_every_training_image_has_its_candidates_in_shards(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    made = candidates(tmp_path / "a", inputs, shard_size=5)
    assert sorted(made.manifest["files"]) == [f"candidates-{number:05}.safetensors" for number in range(3)]
    held = all_latents(made)
    assert held["latent"].shape == (NUM_TRAIN, 5, 4, 4, 4)
    assert held["latent"].dtype == torch.float16
    assert held["source"].tolist() == list(range(NUM_TRAIN))
    assert len(held["latent"].flatten(2).flatten(0, 1).unique(dim=0)) == NUM_TRAIN * 5


def test_a_candidate_is_the_solution_from_its_own_noise_and_condition(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    made = all_latents(candidates(tmp_path / "a", inputs))["latent"]
    images = tiny_images()["train"]
    features = inputs["features"].load("features.safetensors")["train.feature"]
    condition = conditions(inputs["denoiser"].manifest["notes"], images, features)
    assert condition is not None
    drawn = sampler(tmp_path / "s", inputs)
    drawn.seed = sampler_settings().seed
    noise = drawn.noise(7, 5, 1.0)
    network = open_denoiser(inputs["denoiser"])

    def alone(row: int) -> Tensor:
        own = condition[row : row + 1]
        return denoise_latents(
            lambda rows: lambda x, sigma: network(x, sigma, own.expand(len(x), -1)),
            noise,
            SamplerSettings("dpmpp_2m", 3, 0.06),
            batch_size=5,
        )

    # Half precision has 11 bits.
    torch.testing.assert_close(made[7].float(), alone(7), atol=2e-3, rtol=2e-3)
    assert (
        float((alone(8) - alone(7)).abs().max()) > 0.02
    )  # the condition of another image is another candidate


def test_neither_batches_nor_shards_nor_other_rows_change_a_candidate(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    whole = all_latents(candidates(tmp_path / "whole", inputs))
    for number, changes in enumerate(
        ({"batch_size": 3}, {"shard_size": 1}, {"shard_size": 7, "batch_size": 11})
    ):
        parts = all_latents(candidates(tmp_path / str(number), inputs, **changes))
        assert torch.equal(parts["source"], whole["source"])
        torch.testing.assert_close(parts["latent"], whole["latent"], atol=2e-3, rtol=2e-3)
    some = all_latents(candidates(tmp_path / "some", inputs, num_sources=4))
    torch.testing.assert_close(some["latent"], whole["latent"][some["source"]], atol=2e-3, rtol=2e-3)


def test_candidates_are_a_function_of_the_seed(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    first = all_latents(candidates(tmp_path / "a", inputs))
    torch.rand(3)
    assert equal(first, all_latents(candidates(tmp_path / "b", inputs)))
    assert not torch.equal(first["latent"], all_latents(candidates(tmp_path / "c", inputs, seed=1))["latent"])


def test_a_run_killed_between_shards_goes_on_and_makes_the_same_bytes(
    tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = candidates(tmp_path / "whole", inputs)
    drawn: list[list[int]] = []
    draw = CandidateSampler.draw

    def dying(self: CandidateSampler, rows: Tensor, *arguments: Any) -> Tensor:
        if len(drawn) == 2:
            raise KeyboardInterrupt
        drawn.append(rows.tolist())
        return draw(self, rows, *arguments)

    context = stage_context(tmp_path / "killed")
    monkeypatch.setattr(CandidateSampler, "draw", dying)
    with pytest.raises(KeyboardInterrupt):
        stage_module.run(sampler_settings(), inputs, context)
    assert drawn == [[0, 1, 2, 3], [4, 5, 6, 7]]
    # A file that was half written when the process died.
    (context.scratch / pieces.PIECES / ".candidates-00002.safetensors.partial").write_bytes(b"half")
    monkeypatch.setattr(CandidateSampler, "draw", draw)
    again: list[list[int]] = []

    def counted(self: CandidateSampler, rows: Tensor, *arguments: Any) -> Tensor:
        again.append(rows.tolist())
        return draw(self, rows, *arguments)

    monkeypatch.setattr(CandidateSampler, "draw", counted)
    made = found(context.output, None, stage_module.run(sampler_settings(), inputs, context))
    assert again == [[8, 9, 10, 11]]
    for name in whole.manifest["files"]:
        assert (made.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_a_damaged_shard_is_made_again(
    tmp_path: Path, inputs: dict[str, Artifact], caplog: pytest.LogCaptureFixture
) -> None:
    context = stage_context(tmp_path / "a")
    whole = found(context.output, None, stage_module.run(sampler_settings(), inputs, context))
    name = "candidates-00001.safetensors"
    good = (whole.path / name).read_bytes()
    for path in (whole.path / name, context.scratch / pieces.PIECES / name):
        path.unlink()
        path.write_bytes(good[:100])
    for file in context.output.iterdir():
        file.unlink()
    stage_module.run(sampler_settings(), inputs, context)
    assert (context.output / name).read_bytes() == good
    assert "is damaged" in caplog.text


def test_processes_share_the_shards_and_the_first_has_them_all(
    tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = candidates(tmp_path / "whole", inputs)
    waits: list[int] = []
    monkeypatch.setattr(pieces, "wait_for_all", lambda context: waits.append(context.rank))
    second = stage_context(tmp_path / "shared", rank=1, world_size=2)
    assert stage_module.run(sampler_settings(), inputs, second) == Outcome()
    assert sorted(path.name for path in (second.scratch / pieces.PIECES).iterdir()) == [
        "candidates-00001.safetensors"
    ]
    assert not list(second.output.iterdir())
    first = dataclasses.replace(second, rank=0)
    made = found(first.output, None, stage_module.run(sampler_settings(), inputs, first))
    assert waits == [1, 0]
    assert equal(all_latents(made), all_latents(whole))


def test_a_subset_of_sources_has_the_classes_in_proportion(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    made = candidates(tmp_path / "a", inputs, num_sources=6)
    assert made.manifest["notes"]["sources"] == {"normal": 2, "bacteria": 2, "virus": 2}
    with pytest.raises(ConfigError, match="num_sources must be ≤ 12"):
        candidates(tmp_path / "b", inputs, num_sources=13)


def test_the_unguided_weight_is_the_denoiser_alone_whatever_the_guide(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    rows = torch.tensor([0, 5])
    plain = sampler(tmp_path / "a", inputs, needed=False, guidance="none").draw(rows, 3, 1.0)
    for kind in ("unconditional", "earlier", "both"):
        assert torch.equal(sampler(tmp_path / kind, inputs, guidance=kind).draw(rows, 3, 1.0), plain)


def test_each_guide_is_the_network_it_names(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    rows = torch.tensor([3])
    other = tiny_inputs(tmp_path / "other", condition="none")["denoiser"]
    guided = {**inputs, "guide": other}
    drawn = {
        (kind, role): sampler(tmp_path / f"{kind} {role}", given, guidance=kind).draw(rows, 2, 0.0)
        for kind in ("unconditional", "earlier", "both")
        for role, given in (("own", inputs), ("guide", guided))
    }
    # At weight 0 the guide alone is sampled: what it is can be seen.
    expected = {
        ("unconditional", "own"): (inputs["denoiser"], False, None),
        ("unconditional", "guide"): (other, False, None),
        ("earlier", "own"): (inputs["denoiser"], True, 3),
        ("earlier", "guide"): (inputs["denoiser"], True, 3),
        ("both", "own"): (inputs["denoiser"], True, None),
        ("both", "guide"): (other, True, None),
    }
    features = inputs["features"].load("features.safetensors")["train.feature"]
    unit = torch.nn.functional.normalize(features, dim=1)
    for key, (artifact, earlier, row) in expected.items():
        network = open_denoiser(artifact, earlier=earlier)
        alone = CandidateSampler(
            network,
            None,
            None if row is None else unit,
            SamplerSettings("dpmpp_2m", 3, 0.06),
            GuidanceSettings(),
            (4, 4, 4),
            seed=1,
            batch_size=64,
            key="",
        )
        alone.noise = lambda row, num, weight, own=alone: CandidateSampler.noise(own, row, num, 0.0)  # type: ignore[method-assign]
        torch.testing.assert_close(drawn[key], alone.draw(rows, 2, 1.0), msg=str(key))


def test_raw_weights_and_other_averages_can_be_sampled(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    rows = torch.tensor([0])
    drawn = [sampler(tmp_path / str(w), inputs, ema_width=w).draw(rows, 1, 1.0) for w in (None, 0.1, 0.0)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
    with pytest.raises(ArtifactError, match=r"no average of width 0\.05"):
        sampler(tmp_path / "x", inputs, ema_width=0.05)


def test_a_batch_that_does_not_fit_is_halved_and_kept(
    tmp_path: Path, inputs: dict[str, Artifact], caplog: pytest.LogCaptureFixture
) -> None:
    whole = sampler(tmp_path / "a", inputs).draw(torch.arange(3), 4, 1.0)
    small = sampler(tmp_path / "b", inputs)
    main = small.main

    def tight(x: Tensor, sigma: Tensor, condition: Tensor | None) -> Tensor:
        if len(x) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return main(x, sigma, condition)

    small.main = tight
    torch.testing.assert_close(small.draw(torch.arange(3), 4, 1.0), whole, atol=2e-3, rtol=2e-3)
    assert small.batch_size == 4
    assert "stages.candidates.batch_size=64" in caplog.text


def test_a_diverged_denoiser_is_refused(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    bad = sampler(tmp_path / "a", inputs)
    bad.main = lambda x, sigma, condition: x * torch.nan
    with pytest.raises(ArtifactError, match="2 of 2 candidates are not finite"):
        bad.draw(torch.tensor([0]), 2, 1.0)


def test_progress_says_images_a_second_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    with ImageProgress("candidates", 4000) as progress:
        now[0] += 5.0
        progress.finish(500)
        assert capsys.readouterr().out == ""  # not before ten seconds
        now[0] += 5.0
        progress.within(500)
        now[0] += 1.0
        progress.within(600)
    assert capsys.readouterr().out == "candidates: 1000/4000 images, 100 images/s, 0:30 left\n"


def test_features_of_other_images_are_refused(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    other = tiny_inputs(tmp_path / "other")
    stored = other["features"].load("features.safetensors")["train.feature"][:5]
    from safetensors.torch import save_file

    save_file({"train.feature": stored.clone()}, other["features"].path / "features.safetensors")
    with pytest.raises(DataError, match="features of 5 training images, but there are 12"):
        candidates(tmp_path / "a", {**inputs, "features": other["features"]})


@pytest.mark.parametrize("condition", ["none", "class"])
def test_other_conditions_need_no_features(tmp_path: Path, condition: str) -> None:
    given = tiny_inputs(tmp_path / "given", condition=condition)
    guidance = "none" if condition == "none" else "unconditional"
    made = all_latents(candidates(tmp_path / "a", given, guidance=guidance))
    assert bool(made["latent"].isfinite().all())


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("sigma_min", {"sigma_min": 90.0}),
        ("guidance_weight", {"guidance": "none", "guidance_weight": 1.2}),
        ("guidance_interval", {"guidance_interval": [2.0, 1.0]}),
        ("guidance_interval", {"guidance_interval": [2.0]}),
        ("num_candidates", {"num_candidates": 0}),
        ("solver", {"solver": "ddpm"}),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(key: str, changes: dict[str, Any]) -> None:
    values = dataclasses.asdict(sampler_settings()) | changes
    with pytest.raises(ConfigError) as raised:
        build_settings(SynthesizeImagesSettings, values, "stages.candidates")
    assert raised.value.key == f"stages.candidates.{key}"


def supplier(name: str, condition: str = "feature", dropout: float = 0.15, **inputs: str) -> SimpleNamespace:
    settings = SimpleNamespace(condition=condition, condition_dropout=dropout, ema_widths=[0.05, 0.1])
    return SimpleNamespace(name=name, settings=settings, inputs=inputs)


def planned_suppliers(**changes: Any) -> dict[str, Any]:
    own = {"codec": "codec", "images": "images", "features": "features"}
    suppliers = {
        "images": supplier("images"),
        "codec": supplier("codec", images="images"),
        "features": supplier("features", images="images"),
        "denoiser": supplier("diadm", **own),
    }
    return {role: one for role, one in (suppliers | changes).items() if one is not None}


OWN = {"codec": "codec", "images": "images", "features": "features"}
SITE_B = {**OWN, "images": "images_b"}


@pytest.mark.parametrize(
    ("key", "settings", "changes"),
    [
        ("inputs.denoiser", {}, {"denoiser": supplier("diadm_b", **SITE_B)}),
        ("inputs.features", {}, {"features": None}),
        ("inputs.features", {}, {"features": supplier("others", images="images")}),
        ("inputs.codec", {}, {"codec": supplier("codec_2", images="images")}),
        ("inputs.guide", {"guidance_weight": 1.2}, {"denoiser": supplier("diadm", dropout=0.0, **OWN)}),
        ("inputs.guide", {"guidance_weight": 1.2}, {"guide": supplier("guide", dropout=0.0, **OWN)}),
        (
            "guidance",
            {"guidance_weight": 1.2},
            {"denoiser": supplier("edm", "none", 0.0, codec="codec", images="images")},
        ),
    ],
)
def test_suppliers_that_do_not_fit_are_refused_before_anything_runs(
    key: str, settings: dict[str, Any], changes: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as raised:
        STAGE.check_suppliers(sampler_settings(**settings), planned_suppliers(**changes), "stages.candidates")
    assert raised.value.key == f"stages.candidates.{key}"


@pytest.mark.parametrize("guidance", ["none", "unconditional", "earlier", "both"])
def test_the_average_to_sample_with_is_one_that_each_network_in_use_keeps(guidance: str) -> None:
    guide = supplier("unconditional", "none", 0.0, codec="codec", images="images")
    guide.settings.ema_widths = [0.1]
    suppliers = planned_suppliers(guide=guide)

    def check(ema_width: float | None) -> None:
        STAGE.check_suppliers(
            sampler_settings(guidance=guidance, ema_width=ema_width), suppliers, "stages.candidates"
        )

    for width in (None, 0.0, 0.1):
        check(width)
    with pytest.raises(
        ConfigError, match=r"one of 0\.05, 0\.1, .*got 0\.2.*image_sampler\.ema_width"
    ) as raised:
        check(0.2)
    assert raised.value.key == "stages.candidates.ema_width"
    if guidance in ("none", "earlier"):
        check(0.05)
    else:
        with pytest.raises(ConfigError, match=r"one of 0\.1, which unconditional keeps"):
            check(0.05)


def test_suppliers_that_fit_pass() -> None:
    guide = supplier("unconditional", "none", 0.0, codec="codec", images="images")
    bare = supplier("diadm", dropout=0.0, **OWN)
    for weight, changes in (
        (1.0, {}),
        (1.2, {}),
        (1.0, {"denoiser": bare}),
        (1.2, {"denoiser": bare, "guide": guide}),
    ):
        STAGE.check_suppliers(
            sampler_settings(guidance_weight=weight), planned_suppliers(**changes), "stages.c"
        )
