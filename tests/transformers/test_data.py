from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

from thermoformer.transformers import Examples  # noqa: E402


def small_tokenizer(*, bert: bool = False, **options):
    """A tokenizer of words: w0 is 4, w1 is 5 and so on; with the special tokens of BERT, or a beginning and an end."""
    words = {word: place for place, word in enumerate(["[UNK]", "[A]", "[B]", "[PAD]"] + [f"w{n}" for n in range(20)])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    names = {"unk_token": "[UNK]", **options}
    if bert:
        model.post_processor = tokenizers.processors.TemplateProcessing(
            single="[A] $A [B]", special_tokens=[("[A]", 1), ("[B]", 2)]
        )
        names = {"cls_token": "[A]", "sep_token": "[B]", "pad_token": "[PAD]", **names}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, **names)


def words(*lengths):
    return [" ".join(f"w{(place + length) % 20}" for place in range(length)) for length in lengths]


def test_batches_are_of_like_length_and_their_order_is_undone():
    texts = words(*np.random.default_rng(0).integers(1, 30, 50).tolist())
    tokenizer = small_tokenizer(bert=True)
    examples = Examples.from_texts(tokenizer, texts, np.arange(50) % 3)
    found, computed = {}, 0
    for places, batch in examples.batches(8):
        assert batch["input_ids"].shape == batch["attention_mask"].shape
        assert batch["attention_mask"].any(0).all()  # no column of padding alone
        computed += batch["input_ids"].numel()
        for place, row, mask in zip(places, batch["input_ids"], batch["attention_mask"], strict=True):
            found[int(place)] = row[mask.bool()].tolist()
            assert (row[~mask.bool()] == 3).all() and mask.diff().le(0).all()
    assert [found[place] for place in range(50)] == [tokenizer(text)["input_ids"] for text in texts]
    assert computed < 1.15 * examples.lengths.sum() and len(examples) == 50 and examples.classes == 3
    assert examples.kind == "labelled" and examples.lengths[0] == len(texts[0].split()) + 2


def test_long_texts_are_cut():
    texts = words(3, 40)
    assert Examples.from_texts(small_tokenizer(bert=True), texts, [0, 1], max_length=16).lengths.tolist() == [5, 16]
    limited = small_tokenizer(bert=True, model_max_length=12)
    cut = Examples.from_texts(limited, texts, [0, 1])
    assert cut.lengths.tolist() == [5, 12] and cut.inputs["input_ids"][1][-1] == 2


def test_token_types_travel_along():
    tokenizer = small_tokenizer(bert=True, model_input_names=["input_ids", "token_type_ids", "attention_mask"])
    (_, batch), *rest = Examples.from_texts(tokenizer, words(2, 5)).batches(4)
    assert set(batch) == {"input_ids", "token_type_ids", "attention_mask"} and not rest
    assert batch["token_type_ids"].shape == batch["input_ids"].shape


def test_without_padding_the_end_of_text_fills_up():
    examples = Examples.from_texts(small_tokenizer(eos_token="[B]"), words(1, 3))
    (_, batch), *_ = examples.batches()
    assert batch["input_ids"][0].tolist() == [5, 2, 2] and batch["attention_mask"][0].tolist() == [1, 0, 0]
    assert examples.kind == "language" and examples.labels is None and examples.classes == 0
    assert Examples.from_texts(small_tokenizer(), words(1, 3)).padding == 0


def test_subsets_keep_labels_and_classes():
    examples = Examples.from_texts(small_tokenizer(), words(1, 2, 3), [0, 1, 2])
    chosen = examples.subset([2, 0])
    assert chosen.lengths.tolist() == [3, 1] and chosen.need_labels().tolist() == [2, 0] and chosen.classes == 3
    assert Examples.from_texts(small_tokenizer(), words(1), [0], classes=4).classes == 4
    pixels = np.random.default_rng(0).random((3, 1, 4, 4))
    images = Examples.from_images(torch.tensor(pixels), torch.tensor([1, 0, 1])).subset([2, 1])
    (places, batch), *_ = images.batches(8)
    assert places.tolist() == [0, 1] and batch["pixel_values"].dtype == torch.float32 and set(batch) == {"pixel_values"}
    np.testing.assert_allclose(batch["pixel_values"].numpy(), pixels[[2, 1]], rtol=1e-6)
    assert images.need_labels().tolist() == [1, 0]


def test_a_long_text_is_cut_with_nothing_lost():
    text = " ".join(words(19, 19, 19))
    tokenizer = small_tokenizer(bos_token="[A]", eos_token="[B]")
    examples = Examples.from_text(tokenizer, text, length=11)
    assert examples.lengths.tolist() == [11, 11, 11, 11, 11, 8] and examples.kind == "language"
    assert all(row[0] == 1 for row in examples.inputs["input_ids"])
    joined = np.concatenate([row[1:] for row in examples.inputs["input_ids"]])
    assert joined.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
    # Without a token for a beginning, a last token on its own cannot be predicted.
    assert Examples.from_text(small_tokenizer(), text, length=8).lengths.tolist() == [8] * 7
    assert Examples.from_text(small_tokenizer(model_max_length=16), text, length=16).lengths.tolist() == [16, 16, 16, 9]


def test_sequences_of_tokens():
    tokens = np.arange(12).reshape(3, 4)
    for given in (tokens, torch.tensor(tokens), tokens.tolist()):
        examples = Examples.from_tokens(given)
        (_, batch), *_ = examples.batches()
        assert batch["input_ids"].tolist() == tokens.tolist() and batch["attention_mask"].all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Examples.from_texts(small_tokenizer(), []), "texts: got none; expected at least one text"),
        (lambda: Examples.from_texts(small_tokenizer(), "w1 w2"), "texts: got a str .*expected a sequence of str"),
        (lambda: Examples.from_texts(small_tokenizer(), ["w1", 2]), "texts: .*expected a sequence of str"),
        (lambda: Examples.from_texts(small_tokenizer(), ["w1", ""]), "texts\\[1\\]: got '', which has no tokens"),
        (lambda: Examples.from_texts(small_tokenizer(), ["w1"], [0, 1]), "labels: got 2 labels; expected 1, one per"),
        (lambda: Examples.from_texts(small_tokenizer(), ["w1"], ["a"]), "labels: got <U1 .*expected whole numbers"),
        (lambda: Examples.from_texts(small_tokenizer(), ["w1"], [-1]), "labels: got -1 to -1; expected 0 to"),
        (lambda: Examples.from_texts(small_tokenizer(), ["w1"], [2], classes=2), "labels: got 2 to 2; expected 0 to 1"),
        (lambda: Examples.from_texts(small_tokenizer(), ["w1"], max_length=0), "max_length: got 0; expected a whole"),
        (lambda: Examples.from_texts(small_tokenizer(), ["w1"]).need_labels(), "labels: got none; expected labelled"),
        (lambda: Examples.from_texts(small_tokenizer(), ["w1"]).subset([1]), "indices: got 1 to 1; expected 0 to 0"),
        (lambda: Examples.from_texts(small_tokenizer(), ["w1"]).subset([]), "indices: .*expected one or more whole"),
        (lambda: list(Examples.from_tokens([[1, 2]]).batches(0)), "size: got 0; expected a whole number, 1 or more"),
        (lambda: Examples.from_tokens([1, 2]), "tokens: got int64 of shape \\(2,\\); expected whole numbers"),
        (lambda: Examples.from_tokens([[1.0, 2.0]]), "tokens: got float64"),
        (lambda: Examples.from_tokens([[1], [2]]), "tokens: got shape \\(2, 1\\); expected .*two tokens or more"),
        (lambda: Examples.from_tokens(np.zeros((0, 4), int)), "tokens: got shape \\(0, 4\\); expected one sequence"),
        (lambda: Examples.from_tokens([[1, -100]]), "tokens: got a smallest of -100; expected no negative"),
        (lambda: Examples.from_text(small_tokenizer(), "w1"), "text: got 1 tokens; expected two tokens or more"),
        (lambda: Examples.from_text(small_tokenizer(), ["w1"]), "text: got a list; expected one str"),
        (lambda: Examples.from_text(small_tokenizer(), "w1 w2", length=1), "length: got 1; expected 2 to"),
        (
            lambda: Examples.from_text(small_tokenizer(model_max_length=8), "w1 w2", length=9),
            "length: got 9; expected 2 to 8 tokens",
        ),
        (lambda: Examples.from_images(np.zeros((2, 4, 4)), [0, 1]), "pixel_values: got float64 of shape"),
        (lambda: Examples.from_images(np.zeros((0, 1, 4, 4)), []), "pixel_values: got shape .*at least one image"),
        (lambda: Examples.from_images(np.full((1, 1, 2, 2), np.nan), [0]), "pixel_values: got NaN or infinite"),
        (
            lambda: Examples.from_images(np.zeros((1, 1, 2, 2)), [0]).need_tokens(),
            "examples: got pixel_values; expected",
        ),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
