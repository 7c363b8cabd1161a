"""Train the fusion encoder; test it with all its modalities and with each alone."""

from __future__ import annotations

from collections.abc import Mapping

from fedsynth.data.paired import PairedClients
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.privacy import LedgerEntry
from fedsynth.seeding import derive_seed
from fedsynth.stages.fusion_encoder.evaluation import client_metrics, evaluate
from fedsynth.stages.fusion_encoder.module import FusionEncoder
from fedsynth.stages.fusion_encoder.network import network_numbers
from fedsynth.stages.fusion_encoder.private_training import PrivateFusionEncoder, plan_private_training
from fedsynth.stages.fusion_encoder.spec import FusionEncoderSettings, published, uncovered
from fedsynth.stages.fusion_encoder.training import train
from fedsynth.stages.training import seed_everything


def run(settings: FusionEncoderSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Weights, the curve by round or epoch, test scores of every arm."""
    pairs = PairedClients.from_tensors(inputs["clients"].load("pairs.safetensors"))
    seed = derive_seed(settings.seed, "fusion_encoder")
    seed_everything(seed)
    private = plan_private_training(settings, pairs, context)
    module = (FusionEncoder if private is None else PrivateFusionEncoder)(
        network=network_numbers(settings),
        modality_dropout=settings.modality_dropout,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        modalities=list(settings.modalities),
    )
    if isinstance(module, PrivateFusionEncoder):
        module.training_plan = private
    if "xray_encoder" in inputs:
        module.network.image_encoder.load_state_dict(inputs["xray_encoder"].load("encoder.safetensors"))
    trained = train(module, pairs, settings, context, seed=seed)
    if context.rank != 0:
        return Outcome()
    network = module.network.cpu()
    context.save("model.safetensors", network.state_dict())
    trained.history.write(context.output)
    outcome = evaluate(network, pairs, settings, context)
    if trained.normalization:
        context.save("client_normalization.safetensors", trained.normalization_tensors())
    if private is None:
        entry = LedgerEntry.without_guarantee(stage=context.name, published=published(settings))
    else:
        entry = private.ledger_entry(context.name, uncovered(settings))
    return Outcome(
        metrics=outcome.metrics + client_metrics(network, trained.normalization, pairs, settings),
        ledger=[entry.to_record()],
        notes={trained.counter: trained.chosen, **outcome.notes, **(private.notes() if private else {})},
    )
