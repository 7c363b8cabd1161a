"""The gradient of every single record: the fusion network as Opacus can take it apart."""

from __future__ import annotations

import copy
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from fedsynth.errors import ConfigError
from fedsynth.models.fusion_classifier import FusionClassifier


class LinearSelfAttention(nn.Module):
    """``nn.MultiheadAttention`` as two linear layers, of which Opacus knows the per-record gradients.

    Shares the parameters of the attention it is made from. Self-attention without dropout only.
    """

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads = attention.num_heads
        self.projection = _linear(attention.in_proj_weight, attention.in_proj_bias)
        self.out_proj = _linear(attention.out_proj.weight, attention.out_proj.bias)

    def forward(
        self,
        query: Float[Tensor, "b q d"],
        key: Float[Tensor, "b q d"],
        value: Float[Tensor, "b q d"],
        key_padding_mask: Bool[Tensor, "b q"],
        need_weights: bool = True,
    ) -> tuple[Float[Tensor, "b q d"], Float[Tensor, "b q q"]]:
        """Output and head-averaged weights, as ``nn.MultiheadAttention`` returns them."""
        batch, tokens, dim = query.shape
        heads = self.projection(query).view(batch, tokens, 3, self.num_heads, dim // self.num_heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # [b, head, q, d / heads] each
        logits = q @ k.transpose(-1, -2) / (dim // self.num_heads) ** 0.5
        weights = logits.masked_fill(key_padding_mask[:, None, None], float("-inf")).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, tokens, dim)
        return self.out_proj(mixed), weights.mean(1)


def per_record_view(network: FusionClassifier) -> Any:
    """The network with Opacus' hooks, and the very same parameters: training it trains ``network``.

    ``network`` keeps its plain parameter names and its speed in evaluation.

    Raises:
        ConfigError: If a layer mixes records (BatchNorm), holds buffers, or skips missing inputs.
    """
    from opacus.grad_sample import GradSampleModule
    from opacus.validators import ModuleValidator

    if network.missing != "zero":
        raise ConfigError(
            f"model.missing must be zero for DP-SGD, got {network.missing!r}: with skip not every layer sees every "
            "record, and per-record gradients would be those of other records. Say model.missing=zero."
        )
    view = copy.deepcopy(network, {id(parameter): parameter for parameter in network.parameters()})
    for name, module in list(view.named_modules()):
        if isinstance(module, nn.MultiheadAttention):
            view.set_submodule(name, LinearSelfAttention(module))
    errors = ModuleValidator.validate(view, strict=False)
    if errors:
        raise ConfigError(
            f"DP-SGD needs layers that keep records apart, but: {errors[0]} Say model.normalization=group, or another "
            "model.backbone."
        )
    return GradSampleModule(view, loss_reduction="sum", strict=True)


def _linear(weight: Any, bias: Any) -> nn.Linear:
    """A linear layer of these very parameters."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = weight, bias
    return layer
