"""Train the fusion encoder; test it with all its modalities and with each alone."""

from __future__ import annotations

from collections.abc import Mapping

from fedsynth.data.paired import PairedClients
from fedsynth.federated.client import ClientId
from fedsynth.federated.state import State
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.seeding import derive_seed
from fedsynth.stages.fusion_encoder.evaluation import client_metrics, evaluate
from fedsynth.stages.fusion_encoder.module import FusionEncoder
from fedsynth.stages.fusion_encoder.network import MODALITIES, network_numbers
from fedsynth.stages.fusion_encoder.private_training import PrivateFusionEncoder, plan_private_training
from fedsynth.stages.fusion_encoder.spec import FusionEncoderSettings, uncovered
from fedsynth.stages.fusion_encoder.training import num_models, train
from fedsynth.stages.multimodal.federation_files import save_federation
from fedsynth.stages.multimodal.strategies import shared_modalities
from fedsynth.stages.multimodal.training import Trained
from fedsynth.stages.multimodal.training_ledger import training_ledger
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
        num_models=num_models(settings, pairs.train.client),
    )
    if isinstance(module, PrivateFusionEncoder):
        module.training_plan = private
    if "xray_encoder" in inputs:
        module.network.image_encoder.load_state_dict(inputs["xray_encoder"].load("encoder.safetensors"))
    if private is None:
        shared = shared_modalities(settings, MODALITIES, settings.modalities)
        entries = training_ledger(settings, shared, context, pairs.train)
    else:
        entries = [private.ledger_entry(context.name, uncovered(settings))]
    trained = train(module, pairs, settings, context, seed=seed)
    if context.rank != 0:
        return Outcome()
    network = module.network.cpu()
    context.save("model.safetensors", network.state_dict())
    trained.history.write(context.output)
    save_federation(context, trained)
    notes = {trained.counter: trained.chosen, **(private.notes() if private else {})}
    metrics = client_metrics(network, personal_states(settings, trained), pairs, settings)
    if settings.has_global_model:
        outcome = evaluate(network, pairs, settings, context)
        metrics, notes = outcome.metrics + metrics, {**notes, **outcome.notes}
    return Outcome(metrics=metrics, ledger=[entry.to_record() for entry in entries], notes=notes)


def personal_states(settings: FusionEncoderSettings, trained: Trained) -> Mapping[ClientId, State]:
    """What distinguishes a client's own model from the global one: its normalization under FedBN, or all of it."""
    own = settings.strategy_name == "fedbn" or not settings.has_global_model
    return trained.models if own else {}
