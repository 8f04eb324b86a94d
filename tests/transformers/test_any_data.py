"""Labels of every kind, and data as training code has it: scored, judged, and compared with brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import labelled, sequences, slope_in_mask, tiny_model, tiny_tokenizer  # noqa: E402

from thermoformer.transformers import (  # noqa: E402
    Examples,
    NumberProbe,
    goal_for,
    head_masks,
    own_accuracy,
    own_error,
    perplexity,
    pruning_curve,
    score_heads,
)
from thermoformer.transformers.judge import judged  # noqa: E402

ONES = np.ones(12)


def with_labels(labels):
    """Texts with labels of another kind."""
    texts = labelled()
    rows = [{"input_ids": row, "labels": label} for row, label in zip(texts.inputs["input_ids"], labels, strict=True)]
    return Examples.from_dataset(rows)


def token_classes():
    """Every token is of one of three classes, but the first, which does not count."""
    return with_labels([np.concatenate([[-100], row[1:] % 3]) for row in labelled().inputs["input_ids"]])


def several():
    return with_labels((np.random.default_rng(0).random((24, 3)) < 0.5).astype(float))


def numbers():
    """Two numbers per example, of which the tokens tell the first."""
    means = [row.mean() / 10 for row in labelled().inputs["input_ids"]]
    return with_labels(np.column_stack([means, np.random.default_rng(0).normal(size=24)]))


def masked():
    tokenizer = tiny_tokenizer()
    tokenizer.mask_token = "<unk>"
    return labelled().masked(tokenizer, share=0.3)


def answers():
    """Sequences for a causal model of which only the second half counts."""
    rows = sequences().inputs["input_ids"]
    return Examples.from_dataset(
        [{"input_ids": row, "labels": [-100] * 4 + row[4:].tolist()} for row in rows],
    )


OUTPUTS = {"num_labels": 3}
CASES = {
    "masked": (masked, ("BERT", "ForMaskedLM"), {}, "language", "perplexity"),
    "answers": (answers, ("Llama", "ForCausalLM"), {}, "language", "perplexity"),
    "token classes": (token_classes, ("BERT", "ForTokenClassification"), OUTPUTS, "classifier", "accuracy"),
    "several": (several, ("BERT", "ForSequenceClassification"), OUTPUTS, "classifier", "accuracy"),
    "numbers": (numbers, ("BERT", "ForSequenceClassification"), {"num_labels": 2}, "classifier", "error"),
    "probe of numbers": (numbers, ("BERT", "Model"), {}, "probe", "error"),
    "probe of several": (several, ("BERT", "Model"), {}, "probe", "error"),
}


def case(name):
    make, (family, task), sizes, *_ = CASES[name]
    return tiny_model(family, task, **sizes).double(), make()


@pytest.mark.parametrize("name", CASES)
def test_slopes_are_those_of_finite_differences(name):
    model, data = case(name)
    goal = goal_for(model, data)
    assert (goal.name, goal.measure) == CASES[name][3:]
    mask = ONES.copy()
    mask[[2, 7]] = 0.3
    slope, slopes = goal.expansion(mask).slope, goal.slopes(mask)
    count = goal.tokens if hasattr(goal, "tokens") else len(data)
    for head in (0, 5, 11):
        assert slope[head] == pytest.approx(slope_in_mask(goal.log_evidence, head, mask), rel=5e-3, abs=1e-3)
        if goal.name != "probe":  # which is fitted anew
            assert slopes.sum(0)[head] / count == pytest.approx(
                slope_in_mask(goal.loss, head, mask), rel=5e-3, abs=1e-5
            )


def logits_of(model, data, mask):
    """The logits of every example alone, under a mask."""
    with torch.no_grad(), head_masks(model, torch.from_numpy(mask)):
        return [model(input_ids=torch.from_numpy(row)[None]).logits[0].numpy() for row in data.inputs["input_ids"]]


@pytest.mark.parametrize("name", ["several", "numbers"])
def test_curvature_is_the_covariance_of_the_labels_in_changes_of_logits(name):
    model, data = case(name)
    whole = np.stack(logits_of(model, data, ONES))
    changes = []
    for head in range(12):
        mask = ONES.copy()
        mask[head] += 1e-4
        changes.append((np.stack(logits_of(model, data, mask)) - whole) / 1e-4)
    chances = 1 / (1 + np.exp(-whole))
    weights = chances * (1 - chances) if name == "several" else np.ones_like(whole)
    expected = np.einsum("hec,ec,kec->hk", changes, weights, changes)
    found = goal_for(model, data).expansion(ONES)
    np.testing.assert_allclose(found.curvature, expected, rtol=0.02, atol=0.01 * np.abs(expected).max())
    np.testing.assert_allclose(found.slope, 0, atol=1e-4)  # with all heads it says best what it says


def test_curvature_of_token_classes_is_the_fisher_information():
    model, data = case("token classes")
    one = data.subset([0])
    mask, expected = torch.ones(12, requires_grad=True), np.zeros((12, 12))
    with head_masks(model, mask):
        for row in model(input_ids=torch.from_numpy(one.inputs["input_ids"][0])[None]).logits[0, 1:]:
            logarithms = torch.log_softmax(row, 0)
            slopes = np.stack([torch.autograd.grad(value, mask, retain_graph=True)[0].numpy() for value in logarithms])
            expected += np.einsum("v,vh,vk->hk", logarithms.exp().detach().numpy(), slopes, slopes)
    found = np.mean([goal_for(model, one, seed=seed).expansion(ONES).curvature for seed in range(80)], axis=0)
    assert np.trace(found) == pytest.approx(np.trace(expected), rel=0.15)
    assert np.abs(found - expected).max() < 0.25 * np.abs(expected).max()


def test_models_are_judged_by_what_counts():
    model, data = case("token classes")
    pairs = [
        (logits.argmax(1)[labels != -100], labels[labels != -100])
        for logits, labels in zip(logits_of(model, data, ONES), data.labels, strict=True)
    ]
    assert own_accuracy(model, data) == np.mean(np.concatenate([said == wanted for said, wanted in pairs]))
    model, data = case("several")
    assert own_accuracy(model, data) == ((np.stack(logits_of(model, data, ONES)) > 0) == data.labels).mean()
    model, data = case("numbers")
    miss = np.stack(logits_of(model, data, ONES)) - data.labels
    assert own_error(model, data) == pytest.approx(np.sqrt((miss**2).mean()))
    for name, cut in (("masked", 0), ("answers", 1)):
        model, data = case(name)
        lost = []
        for logits, labels in zip(logits_of(model, data, ONES), data.labels, strict=True):
            logits, labels = logits[: len(logits) - cut], labels[cut:]
            logarithms = logits - np.log(np.exp(logits).sum(1, keepdims=True))
            lost += [-row[label] for row, label in zip(logarithms, labels, strict=True) if label != -100]
        assert perplexity(model, data) == pytest.approx(np.exp(np.mean(lost)))
        assert goal_for(model, data).loss(ONES) == pytest.approx(np.mean(lost))


def test_a_probe_of_numbers_finds_a_linear_function():
    random = np.random.default_rng(0)
    features, weights = random.normal(size=(200, 6)) * [1, 5, 1, 1, 1, 1] + 3, random.normal(size=(6, 2))
    labels = features @ weights + [1, -2] + 0.1 * random.normal(size=(200, 2))
    probe = NumberProbe().fit(features[:100], labels[:100])
    assert 0.09 < probe.error(features[100:], labels[100:]) < 0.12
    matrix, offset = probe.affine()
    squares = ((features @ matrix + offset - labels) ** 2).sum(1)
    assert probe.loss(features, labels) == pytest.approx(0.5 * squares.mean())
    # It is a ridge regression: nothing is learned from labels that no feature tells.
    noise = random.normal(size=(200, 1))
    blind = NumberProbe().fit(features[:100], noise[:100])
    assert blind.error(features[100:], noise[100:]) == pytest.approx(noise[100:].std(), rel=0.1)
    data = numbers()
    assert judged(tiny_model("BERT"), data, data, "probe")[0] < data.labels.std()


@pytest.mark.parametrize("method", ["theory", "gradient", "ablation"])
@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_labels_is_scored(name, method):
    model, data = case(name)
    scores = score_heads(model.float(), data, method, progress=False)
    assert len(scores.labels) == 12 and np.isfinite(scores.values).all() and np.ptp(scores.values) > 0


class Rows:
    """What a data set of the datasets library is to whoever iterates over it."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def test_data_sets_and_loaders_are_examples_too():
    texts = labelled()
    rows = [
        {"sentence": "a text", "idx": place, "input_ids": row.tolist(), "label": int(label)}
        for place, (row, label) in enumerate(zip(texts.inputs["input_ids"], texts.labels, strict=True))
    ]

    def collate(some):
        """Batches padded on the left, as for decoders."""
        longest = max(len(row["input_ids"]) for row in some)
        pads = [longest - len(row["input_ids"]) for row in some]
        return {
            "input_ids": torch.tensor([[0] * pad + row["input_ids"] for pad, row in zip(pads, some, strict=True)]),
            "attention_mask": torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads]),
            "labels": torch.tensor([row["label"] for row in some]),
        }

    loader = torch.utils.data.DataLoader(rows, batch_size=5, collate_fn=collate)
    for data in (rows, Rows(rows), loader):
        found = Examples.from_dataset(data)
        assert found.kind == "labelled" and found.classes == 2 and (found.labels == texts.labels).all()
        for one, other in zip(found.inputs["input_ids"], texts.inputs["input_ids"], strict=True):
            assert one.tolist() == other.tolist()
    model = tiny_model("BERT")
    expected = score_heads(model, texts, progress=False).values
    np.testing.assert_allclose(score_heads(model, loader, progress=False).values, expected, rtol=1e-5)
    curve = pruning_curve(model, loader, Rows(rows), methods=("deepest",), seeds=(0,), fractions=(0.5,), progress=False)
    assert curve.attrs["test_examples"] == 24


def test_labels_that_repeat_the_tokens_are_the_next_ones():
    rows = sequences().inputs["input_ids"]
    given = [{"input_ids": [[*row, 0]], "attention_mask": [[1] * 9 + [0]], "labels": [[*row, -100]]} for row in rows]
    for data in (given, [{"input_ids": row} for row in rows]):
        found = Examples.from_dataset(data)
        assert found.kind == "language" and [row.tolist() for row in found.inputs["input_ids"]] == [
            row.tolist() for row in rows
        ]


def test_masked_examples():
    data = masked()
    for row, labels, whole in zip(data.inputs["input_ids"], data.labels, labelled().inputs["input_ids"], strict=True):
        hidden = labels != -100
        assert hidden.sum() >= 1 and (row[hidden] == 3).all() and (labels[hidden] == whole[hidden]).all()
        assert (row[~hidden] == whole[~hidden]).all() and not (whole[hidden] == 3).any()
    assert data.kind == "tokens" and data.subset([3]).labels[0].tolist() == data.labels[3].tolist()


def test_pairs_of_texts_are_read_as_the_tokenizer_does():
    tokenizer, pairs = tiny_tokenizer(), [("the cat", "the dog sits"), ("a bird", "so")]
    found = Examples.from_texts(tokenizer, pairs, [0.5, 2.5])
    expected = [tokenizer(first, second)["input_ids"] for first, second in pairs]
    assert [row.tolist() for row in found.inputs["input_ids"]] == expected
    assert found.kind == "numbers" and found.labels.tolist() == [[0.5], [2.5]]


def bert_like():
    """The tiny tokenizer with the special tokens of models of masked tokens."""
    tokenizer = tiny_tokenizer()
    tokenizer.cls_token, tokenizer.sep_token, tokenizer.mask_token = "<s>", "</s>", "<unk>"
    return tokenizer


def test_a_text_for_a_model_of_masked_tokens_is_cut_with_its_special_tokens():
    found = Examples.from_text(bert_like(), "the cat sits on the red tree", length=5).inputs["input_ids"]
    assert [len(row) for row in found] == [5, 5, 3] and all(row[0] == 1 and row[-1] == 2 for row in found)


def several_of(count):
    return replace(several(), labels=np.zeros((24, count)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Examples.from_dataset([]), "data: got no rows; expected rows that all have the same names"),
        (lambda: Examples.from_dataset([{"text": "a"}]), r"data\[0\]: got text; expected .*apply a tokenizer"),
        (lambda: Examples.from_dataset([{"input_ids": [[1, 2], [3]]}]), r"data\[0\]\['input_ids'\]: got no table"),
        (lambda: Examples.from_dataset([{"input_ids": "ab"}]), r"data\[0\]\['input_ids'\]: got values of type <U2"),
        (lambda: Examples.from_dataset([{"input_ids": [0.5, 1]}]), "got numbers of type float64; expected whole"),
        (lambda: Examples.from_dataset([{"input_ids": []}]), "got"),
        (lambda: Examples.from_dataset([{"input_ids": [1, -2]}]), "data: got negative tokens"),
        (
            lambda: Examples.from_dataset([{"input_ids": [1], "label": 0}, {"input_ids": [1]}]),
            "data: got rows of {'input_ids': 2, 'labels': 1}; expected rows that all have the same names",
        ),
        (lambda: Examples.from_tokens([[1, 2], [3]]), "tokens: got sequences of unequal lengths.*`from_dataset` takes"),
        (lambda: with_labels([[0.5] * (1 + place % 2) for place in range(24)]), "labels: got rows of unequal shapes"),
        (lambda: with_labels([float("nan")] * 24), "labels: got float64 of shape .* not finite"),
        (lambda: Examples.from_text(bert_like(), "the cat sits", length=2), "length: got 2; expected 3 tokens or more"),
        (lambda: labelled().masked(tiny_tokenizer()), "tokenizer: got one without a token for the mask"),
        (lambda: goal_for(tiny_model("BERT", "ForMaskedLM"), sequences()), "expected masked ones, as of"),
        (lambda: goal_for(tiny_model("BERT", "ForSequenceClassification"), several()), "model: got one of 2 outputs"),
        (lambda: goal_for(tiny_model("BERT"), several_of(3)), "labels: got one and the same number"),
        (
            lambda: goal_for(tiny_model("BERT", "ForTokenClassification"), token_classes()),
            "examples: got labels of 3 classes; expected 2, those of the model",
        ),
        (lambda: goal_for(tiny_model("BERT"), token_classes(), "probe"), "labels: got labels of the kind 'tokens'"),
    ],
)
def test_wrong_data_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_data_of_other_types_are_named():
    for data in ("text", {"input_ids": [1]}, 3):
        with pytest.raises(TypeError, match="data: got a .*expected a data set, a loader or a list"):
            Examples.from_dataset(data)
