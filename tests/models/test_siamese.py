"""The identity network: symmetric by construction, its losses in closed form."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from fedsynth.models.inputs import ModelInputError
from fedsynth.models.siamese import SiameseNetwork
from fedsynth.models.siamese_losses import allowed_negatives, hardest_negatives, infonce, siamese_bce


def network(head: str, **options: object) -> SiameseNetwork:
    torch.manual_seed(0)
    return SiameseNetwork(**{"head": head, "channels": (4, 6), "embedding_dim": 5, **options}).eval()  # type: ignore[arg-type]


def images(num: int = 6, size: int = 12) -> torch.Tensor:
    return torch.randint(
        256, (num, 1, size, size), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )


@pytest.mark.parametrize("head", ["difference", "cosine"])
def test_probability_is_symmetric_and_a_function_of_the_embeddings(head: str) -> None:
    net = network(head)
    net.calibrate(3.0, -0.5)
    first = net(net.pixels(images()))
    second = first.roll(1, 0)
    assert torch.equal(net.probability(first, second), net.probability(second, first))
    assert torch.equal(net.probability(first, second), (3 * net.score(first, second) - 0.5).sigmoid())


def test_difference_head_is_the_formula_of_the_paper() -> None:
    net = network("difference")
    first, second = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(1))
    wanted = nn.functional.linear((first.sigmoid() - second.sigmoid()).abs(), net.head.weight, net.head.bias)
    assert torch.allclose(net.score(first, second), wanted[:, 0])
    # An image and itself: the bias alone.
    assert torch.equal(net.score(first, first), net.head.bias.expand(7))


def test_cosine_head_is_largest_for_an_image_and_itself_and_ignores_length() -> None:
    net = network("cosine")
    embedding = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(net.score(embedding, 3 * embedding), torch.ones(7), atol=1e-6)
    assert bool((net.score(embedding, embedding.roll(1, 0)) < 1).all())


def test_conv_trunk_has_two_convolutions_a_width_and_takes_odd_sizes() -> None:
    net = network("cosine", channels=(32, 64, 128))
    convolutions = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [32, 32, 64, 64, 128, 128]
    assert net(net.pixels(images(2, 29))).shape == (2, 5)


def test_images_are_resized_to_the_input_size_and_scaled_to_one() -> None:
    net = network("cosine", input_size=8)
    pixels = net.pixels(torch.full((2, 1, 12, 12), 255, dtype=torch.uint8))
    assert pixels.shape == (2, 1, 8, 8)
    assert torch.allclose(pixels, torch.ones_like(pixels))


def test_timm_trunk_starts_from_a_local_file_and_refuses_that_of_another_network(tmp_path: Path) -> None:
    import timm
    from safetensors.torch import save_file

    file = tmp_path / "weights.safetensors"
    stored = timm.create_model("test_resnet", num_classes=10)
    save_file(stored.state_dict(), file)
    net = SiameseNetwork(backbone="timm:test_resnet", weights=str(file))
    name, weight = next((name, weight) for name, weight in stored.named_parameters() if weight.ndim == 4)
    # One grey channel sees the sum of the three color channels.
    assert torch.allclose(net.trunk.get_parameter(name), weight.sum(1, keepdim=True), atol=1e-6)
    later = [(name, weight) for name, weight in stored.named_parameters() if name.startswith("layer")]
    assert all(torch.equal(net.trunk.get_parameter(name), weight) for name, weight in later)
    with pytest.raises(
        ModelInputError, match=r"do not fit test_efficientnet: the file lacks \d+ of its tensors"
    ):
        SiameseNetwork(backbone="timm:test_efficientnet", weights=str(file))
    with pytest.raises(ModelInputError, match="is not a file"):
        SiameseNetwork(backbone="timm:test_resnet", weights=str(tmp_path / "absent.pth"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backbone": "timm:resnet5"}, "timm has no model named 'resnet5'"),
        ({"backbone": "cnn"}, "backbone must be"),
        ({"head": "euclidean"}, "head must be"),
        ({"embedding_dim": 0}, "embedding_dim must hold"),
    ],
)
def test_impossible_networks_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ModelInputError, match=message):
        SiameseNetwork(**options)  # type: ignore[arg-type]


def test_images_of_another_mode_are_refused() -> None:
    net = network("cosine")
    with pytest.raises(
        ModelInputError, match=r"image must have shape \[any, 1, any, any\], got \[2, 3, 8, 8\]"
    ):
        net.pixels(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(ModelInputError, match="uint8"):
        net.pixels(torch.zeros(2, 1, 8, 8))


def test_cross_entropy_is_that_of_torch_over_all_pairs() -> None:
    same, different = torch.randn(5), torch.randn(8)
    target = torch.cat([torch.ones(5), torch.zeros(8)])
    wanted = nn.functional.binary_cross_entropy_with_logits(torch.cat([same, different]), target)
    assert torch.allclose(siamese_bce(same, different), wanted)


def test_infonce_with_all_negatives_is_the_mean_of_two_cross_entropies() -> None:
    first, second = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    logits = nn.functional.cosine_similarity(first[:, None], second[None], dim=2) / 0.2
    target = torch.arange(6)
    wanted = (nn.functional.cross_entropy(logits, target) + nn.functional.cross_entropy(logits.T, target)) / 2
    assert torch.allclose(infonce(first, second, torch.ones(6, 6, dtype=torch.bool), 0.2), wanted)


def test_infonce_without_negatives_is_zero_and_forbidden_ones_get_no_gradient() -> None:
    first, second = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    second.requires_grad_()
    assert float(infonce(first, second, torch.zeros(4, 4, dtype=torch.bool), 0.1)) == 0
    allowed = torch.zeros(4, 4, dtype=torch.bool)
    allowed[0, 1] = True
    infonce(first, second, allowed, 0.1).backward()
    assert second.grad is not None
    assert bool((second.grad[2:] == 0).all())
    assert bool((second.grad[:2] != 0).any(1).all())


def test_infonce_of_equal_embeddings_is_the_logarithm_of_their_number() -> None:
    same = torch.ones(8, 3, dtype=torch.float64)
    assert float(infonce(same, same, torch.ones(8, 8, dtype=torch.bool), 0.5)) == pytest.approx(math.log(8))


def test_infonce_refuses_what_has_no_meaning() -> None:
    ones = torch.ones(3, 2)
    with pytest.raises(ModelInputError, match="temperature"):
        infonce(ones, ones, torch.ones(3, 3, dtype=torch.bool), 0.0)
    with pytest.raises(ModelInputError, match=r"\[n, n\]"):
        infonce(ones, ones, torch.ones(3, 2, dtype=torch.bool), 0.1)


def test_negatives_are_of_other_patients_with_other_pixels_and_matching_labels() -> None:
    patient, content, label = (
        torch.tensor([0, 0, 1, 2]),
        torch.tensor([0, 1, 0, 3]),
        torch.tensor([5, 5, 5, 6]),
    )
    anyone = allowed_negatives((patient, patient), (content, content))
    # 0 and 1 are one patient; 0 and 2 have the same pixels.
    assert anyone.tolist() == [
        [False, False, False, True],
        [False, False, True, True],
        [False, True, False, True],
        [True, True, True, False],
    ]
    matched = allowed_negatives((patient, patient), (content, content), (label, label))
    assert matched.nonzero().tolist() == [[1, 2], [2, 1]]


def test_hardest_negatives_are_the_largest_allowed_scores() -> None:
    score = torch.tensor([[1.0, 5.0, 3.0], [2.0, 0.0, 9.0], [7.0, 8.0, 9.0]])
    allowed = torch.tensor([[True, False, True], [True, True, False], [False, False, False]])
    assert hardest_negatives(score, allowed).tolist() == [3.0, 2.0]
