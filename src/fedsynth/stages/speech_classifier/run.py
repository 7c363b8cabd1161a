"""Train the speech classifier by the strategy asked for, or on pooled segments."""

from __future__ import annotations

from collections.abc import Mapping

import lightning as L

from fedsynth.data.speech import SpeechClients
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.seeding import derive_seed
from fedsynth.stages.multimodal.class_counts import count_classes
from fedsynth.stages.multimodal.federation_files import save_federation
from fedsynth.stages.multimodal.strategies import build_strategy, shared_modalities
from fedsynth.stages.multimodal.training import Trained, train_centralized, train_federated
from fedsynth.stages.multimodal.training_ledger import training_ledger
from fedsynth.stages.speech_classifier.datamodule import SpeechClientsData
from fedsynth.stages.speech_classifier.module import SpeechModule
from fedsynth.stages.speech_classifier.network import MODALITIES, network_numbers
from fedsynth.stages.speech_classifier.spec import SpeechClassifierSettings
from fedsynth.stages.training import batch_share, seed_everything


def run(settings: SpeechClassifierSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Weights, prototypes and client models as the strategy has them, and the curve by round or epoch.

    What the classifier is worth is for ``privacy_performance`` to say.
    """
    speech = SpeechClients.from_tensors(inputs["clients"].load("speech.safetensors"))
    seed = derive_seed(settings.seed, "speech_classifier")
    seed_everything(seed)
    num_clients = len(speech.train.client.unique())
    module = SpeechModule(
        network=network_numbers(settings, speech.train),
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        num_models=1 if settings.has_global_model else num_clients,
    )
    if settings.class_weighting == "client":
        module.weigh_classes(count_classes(speech.train.label, speech.train.client))
    entries = training_ledger(settings, shared_modalities(settings, MODALITIES), context, speech.train)
    trained = _train(module, speech, settings, context, seed=seed)
    if context.rank != 0:
        return Outcome()
    context.save("model.safetensors", module.network.cpu().state_dict())
    trained.history.write(context.output)
    save_federation(context, trained)
    return Outcome(ledger=[entry.to_record() for entry in entries], notes={trained.counter: trained.chosen})


def _train(
    module: SpeechModule,
    speech: SpeechClients,
    settings: SpeechClassifierSettings,
    context: StageContext,
    *,
    seed: int,
) -> Trained:
    def data(centralized: bool) -> L.LightningDataModule:
        if not centralized:
            return SpeechClientsData(speech, batch_size=settings.batch_size, seed=seed)
        size, rank = batch_share(settings.batch_size, context), context.rank
        return SpeechClientsData(
            speech, batch_size=size, seed=seed, centralized=True, rank=rank, world_size=context.world_size
        )

    if settings.training == "centralized":
        return train_centralized(module, data, settings, context, seed=seed)
    strategy = build_strategy(settings, module, MODALITIES, context)
    clients = len(speech.train.client.unique())
    return train_federated(module, data, settings, context, strategy=strategy, num_clients=clients, seed=seed)
