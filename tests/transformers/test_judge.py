from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tiny_models import CAUSAL, SEQUENCES, images, tiny_model, tiny_tokenizer  # noqa: E402

from thermoformer.tasks import read_text, write_stories_folder  # noqa: E402
from thermoformer.transformers import (  # noqa: E402
    Examples,
    LinearProbe,
    generate_stories,
    goal_for,
    own_accuracy,
    perplexity,
    pooled,
    probe_accuracy,
)
from thermoformer.transformers.probe import PENALTIES  # noqa: E402

LANGUAGE = ("GPT-2", "Llama")


def build(name, task=None, **sizes):
    return tiny_model(name, task or CAUSAL.get(name, "Model"), **sizes)


def ragged(count=11, classes=3, padding=2, seed=0):
    """Sequences of 2 to 12 tokens with labels."""
    draw = np.random.default_rng(seed)
    rows = tuple(draw.integers(3, 40, length) for length in draw.integers(2, 13, count))
    return Examples({"input_ids": rows}, np.arange(count) % classes, classes, "labelled", padding)


def alone(examples):
    """Each example on its own, without padding."""
    return [torch.tensor(row)[None] for row in examples.inputs["input_ids"]]


@pytest.mark.parametrize("name", ["BERT", *LANGUAGE])
@pytest.mark.parametrize("readout", ["mean", "first", "last"])
def test_features_are_those_of_each_example_alone(name, readout):
    model, examples = build(name), ragged()
    found = pooled(model, examples, readout=readout, batch=4)
    assert found.shape == (11, 32) and found.dtype == np.float32
    with torch.no_grad():
        for row, tokens in zip(found, alone(examples), strict=True):
            states = model.base_model(input_ids=tokens).last_hidden_state[0]
            expected = {"mean": states.mean(0), "first": states[0], "last": states[-1]}[readout]
            np.testing.assert_allclose(row, expected.numpy(), atol=2e-5)


def test_features_of_images():
    model, examples = build("ViT"), images(6, 3)
    with torch.no_grad():
        states = model(torch.from_numpy(examples.inputs["pixel_values"])).last_hidden_state
    np.testing.assert_allclose(pooled(model, examples, batch=4), states.mean(1).numpy(), atol=1e-5)
    np.testing.assert_allclose(pooled(model, examples, readout="first"), states[:, 0].numpy(), atol=1e-5)


def test_every_part_is_afterwards_in_its_own_mode():
    model = build("BERT")
    model.train()
    model.encoder.layer[0].eval()
    modes = [module.training for module in model.modules()]
    first = pooled(model, ragged())
    assert [module.training for module in model.modules()] == modes and any(modes) and not all(modes)
    np.testing.assert_array_equal(first, pooled(model, ragged()))  # dropout is off
    with pytest.raises(ValueError, match="token"):
        pooled(model, Examples.from_tokens([[1, 99]]))
    assert [module.training for module in model.modules()] == modes


def probe_problem(count=300, features=20, classes=4, seed=0, signal=0.4):
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, count)
    x = 5 + 3 * (draw.normal(size=(classes, features))[labels] * signal + draw.normal(size=(count, features)))
    return x, labels


def test_the_probe_stands_where_the_slope_is_zero():
    x, labels = probe_problem()
    probe = LinearProbe(0.02).fit(x, labels)
    standard = torch.tensor((x - x.mean(0)) / x.std(0))
    weights = torch.tensor(probe._weights, requires_grad=True)
    logits = standard @ weights[:, :-1].T + weights[:, -1]
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels)) + 0.01 * (weights[:, :-1] ** 2).sum()
    (slope,) = torch.autograd.grad(loss, weights)
    assert slope.abs().max() < 2e-6
    np.testing.assert_array_equal(probe.predict(x), logits.argmax(1).numpy())
    assert probe.accuracy(x, labels) == (logits.argmax(1).numpy() == labels).mean() > 0.6


def test_the_probe_repeats_and_does_not_mind_units_or_constants():
    x, labels = probe_problem()
    new, _ = probe_problem(seed=1)
    probe = LinearProbe().fit(x, labels)
    np.testing.assert_array_equal(probe._weights, LinearProbe().fit(x, labels)._weights)
    other = LinearProbe().fit(1e4 * x - 7, labels)
    np.testing.assert_array_equal(other.predict(1e4 * new - 7), probe.predict(new))
    # A feature that is constant up to rounding teaches nothing, and does no harm where it is not constant.
    dead = 3 + 1e-9 * np.random.default_rng(0).normal(size=(300, 1))
    padded = LinearProbe().fit(np.hstack([x, dead, np.zeros((300, 1))]), labels)
    np.testing.assert_array_equal(padded.predict(np.hstack([new, 100 * dead, dead])), probe.predict(new))


def test_cross_validation_chooses_by_the_training_set():
    x, labels = probe_problem(count=100, features=80, classes=2, signal=0.1)
    noisy = LinearProbe("auto").fit(x, labels)
    clear = LinearProbe("auto").fit(np.eye(2)[labels] + 0.01 * x[:, :2], labels)
    assert noisy.penalty in PENALTIES and noisy.penalty > clear.penalty == min(PENALTIES)


def test_classes_without_examples_are_possible():
    x, labels = probe_problem(classes=2)
    probe = LinearProbe().fit(x, labels, classes=5)
    assert set(probe.predict(x)) <= {0, 1} and probe.accuracy(x, labels + 2) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LinearProbe("strong"), "penalty: got 'strong'; expected one of 'unit', 'auto'"),
        (lambda: LinearProbe(0), "penalty: got 0.0; expected a number above 0"),
        (lambda: LinearProbe().predict(np.ones((2, 2))), "probe: got one that has not been fitted"),
        (lambda: LinearProbe("auto").penalty, "penalty: got none yet; expected a fitted probe"),
        (lambda: LinearProbe().fit(np.ones((2, 2)), [0, 0]), "labels: got one class only; expected two"),
        (lambda: LinearProbe().fit(np.ones((2, 2)), [0]), "labels: got 1 labels; expected 2, one per example"),
        (lambda: LinearProbe().fit(np.ones((2, 2)), [0.0, 1.0]), "labels: got float64"),
        (lambda: LinearProbe().fit(np.ones((2, 2)), [0, 3], classes=2), "labels: got 0 to 3; expected 0 to 1"),
        (lambda: LinearProbe().fit(np.full((2, 2), np.nan), [0, 1]), "features: got 4 NaN"),
        (
            lambda: LinearProbe().fit(np.eye(3), [0, 1, 1]).accuracy(np.ones((1, 2)), [0]),
            "features: got 2 features; expected 3, as in fit",
        ),
    ],
)
def test_wrong_probes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_probe_reads_what_the_model_knows():
    # The label is the token that most of the sequence repeats.
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, 120)
    rows = tuple(
        np.where(draw.random(length) < 0.6, 10 + label, draw.integers(3, 40, length))
        for label, length in zip(labels, draw.integers(5, 12, 120), strict=True)
    )
    examples = Examples({"input_ids": rows}, labels, 3, "labelled")
    train, test = examples.subset(range(80)), examples.subset(range(80, 120))
    assert probe_accuracy(build("BERT"), train, test, device="cpu") > 0.8
    assert probe_accuracy(build("BERT"), train, test, penalty="auto", readout="last", batch=7) > 0.4
    with pytest.raises(ValueError, match="labels: got none"):
        probe_accuracy(build("BERT"), train, Examples.from_tokens([[1, 2]]))


@pytest.mark.parametrize(("name", "padding"), [("BERT", 0), ("GPT-2", None), ("Llama", 0)])
def test_own_accuracy_is_that_of_each_example_alone(name, padding):
    model = build(name, "ForSequenceClassification", num_labels=3, pad_token_id=padding)
    examples = ragged(30)
    with torch.no_grad():
        model.get_input_embeddings().weight *= 5  # the tokens decide, not their positions
    with torch.no_grad():
        told = np.array([int(model(tokens).logits.argmax()) for tokens in alone(examples)])
    assert len(set(told)) > 1  # a model that always tells the same would prove nothing
    assert own_accuracy(model, examples, batch=8) == (told == examples.labels).mean()
    right = Examples(examples.inputs, told, 3, "labelled", 2)
    assert own_accuracy(model, right, batch=8) == 1 and model.config.pad_token_id == padding


def test_own_accuracy_of_images_and_models_without_a_head():
    model, examples = build("ViT", "ForImageClassification", num_labels=3), images(6, 3)
    with torch.no_grad():
        told = model(torch.from_numpy(examples.inputs["pixel_values"])).logits.argmax(1).numpy()
    assert own_accuracy(model, examples) == (told == examples.labels).mean()
    with pytest.raises(ValueError, match="model: got a BertModel; expected a classifier with logits"):
        own_accuracy(build("BERT"), ragged())
    with pytest.raises(ValueError, match="model: got a LlamaForCausalLM; expected a classifier"):
        own_accuracy(build("Llama"), ragged())
    with pytest.raises(ValueError, match="test: got 3 classes; expected 2, the classes that the model tells"):
        own_accuracy(build("BERT", "ForSequenceClassification", num_labels=2), ragged())


@pytest.mark.parametrize("name", LANGUAGE)
def test_perplexity_counts_every_predicted_token_once(name, monkeypatch):
    model, examples = build(name), ragged()
    with torch.no_grad():
        # The models' own loss is the mean over the predicted tokens of a sequence.
        losses = [(float(model(tokens, labels=tokens).loss), tokens.shape[1] - 1) for tokens in alone(examples)]
    expected = np.exp(sum(loss * count for loss, count in losses) / sum(count for _, count in losses))
    assert perplexity(model, examples) == pytest.approx(expected, rel=1e-5)
    monkeypatch.setattr("thermoformer.transformers.judge._LOGITS_AT_ONCE", 100)
    assert perplexity(model, examples, batch=3) == pytest.approx(expected, rel=1e-5)


def test_perplexity_of_a_model_that_knows_nothing_is_its_vocabulary():
    model = build("Llama")
    torch.nn.init.zeros_(model.lm_head.weight)
    assert perplexity(model, ragged()) == pytest.approx(40, rel=1e-12)
    with pytest.raises(ValueError, match="examples: got a sequence of 1 token; expected two"):
        perplexity(model, Examples({"input_ids": (np.array([3]),)}, None, 0, "language"))
    with pytest.raises(ValueError, match="examples: got pixel_values; expected examples made of tokens"):
        perplexity(model, images(6, 3))
    with pytest.raises(ValueError, match="model: got a BertModel; expected a causal language model"):
        perplexity(build("BERT"), ragged())


def test_stories_are_drawn_from_the_models_own_distribution():
    model = build("Llama", vocab_size=7)
    stories = generate_stories(model, 3000, 3, seed=0, temperature=2.0, batch=1000)
    with torch.no_grad():
        first = torch.softmax(model(torch.tensor([[1]])).logits[0, -1] / 2, 0).numpy()
        second = torch.softmax(model(torch.tensor([[1, token] for token in range(7)])).logits[:, -1] / 2, 1).numpy()
    for expected, drawn in ((first, stories[:, 1]), (first @ second, stories[:, 2])):
        misses = (np.bincount(drawn, minlength=7) - 3000 * expected) / np.sqrt(3000 * expected * (1 - expected))
        assert np.abs(misses).max() < 4


@pytest.mark.parametrize("name", LANGUAGE)
def test_stories_are_the_same_without_a_cache_and_in_any_batch(name):
    model = build(name)
    stories = generate_stories(model, 5, 12, seed=3)
    assert stories.shape == (5, 12) and stories.dtype == np.int64 and (stories[:, 0] == 1).all()
    np.testing.assert_array_equal(stories, generate_stories(model, 5, 12, seed=3, batch=2))
    assert (stories != generate_stories(model, 5, 12, seed=4)).any()
    chances = np.random.default_rng(3).random((5, 11))
    for row, numbers in zip(stories, chances, strict=True):
        for place in range(11):
            with torch.no_grad():
                logits = model(torch.tensor(row[None, : place + 1])).logits[0, -1].double()
            sums = torch.softmax(logits, 0).numpy().cumsum()
            assert row[place + 1] == np.flatnonzero(sums > numbers[place] * sums[-1])[0]


@pytest.mark.parametrize(
    ("call", "model", "error", "message"),
    [
        (pooled, object(), TypeError, "model: got a object; expected a PyTorch model"),
        (partial(pooled, readout="max"), ("BERT",), ValueError, "readout: got 'max'; expected one of 'mean'"),
        (pooled, ("ViT",), ValueError, "examples: got input_ids; expected pixel_values"),
        (perplexity, ("BERT", "ForMaskedLM"), ValueError, "examples without labels of tokens.*expected masked ones"),
        (perplexity, ("BERT", "LMHeadModel"), ValueError, "model: got a BertLMHeadModel; expected a causal language"),
    ],
)
def test_models_that_cannot_be_judged_are_named(call, model, error, message):
    with pytest.raises(error, match=message):
        call(build(*model) if isinstance(model, tuple) else model, ragged())


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (images(), "examples: got pixel_values; expected input_ids"),
        (Examples.from_tokens(np.ones((1, 33), int)), "examples: got one of 33 tokens; expected at most 32, the posit"),
        (Examples.from_tokens([[1, 40]]), "examples: got a token 40; expected tokens below 40"),
    ],
)
def test_examples_that_a_model_cannot_read_are_named(examples, message):
    with pytest.raises(ValueError, match=message):
        pooled(build("BERT"), examples)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "count: got 0"),
        ({"length": 1}, "length: got 1; expected 2 tokens or more"),
        ({"length": 33}, "examples: got one of 33 tokens; expected"),
        ({"seed": -1}, "seed: got -1"),
        ({"temperature": 0}, "temperature: got 0.0"),
        ({"model": build("BERT")}, "model: got a BertModel; expected a causal language model"),
        ({"model": build("Llama", "Model")}, "model: got a LlamaModel; expected a causal language model"),
        (
            {"model": build("Llama", bos_token_id=None)},
            "model: got a LlamaForCausalLM without a token for beginnings; expected one with a bos_token_id",
        ),
    ],
)
def test_stories_that_cannot_be_told_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        generate_stories(**{"model": build("Llama"), "count": 2, "length": 5, "seed": 0} | changes)


def test_positions_of_roberta_start_after_its_padding():
    model = build("RoBERTa", max_position_embeddings=18, pad_token_id=1)
    assert pooled(model, Examples.from_tokens(np.full((1, 16), 3))).shape == (1, 32)
    with pytest.raises(ValueError, match="expected at most 16, the positions"):
        pooled(model, Examples.from_tokens(np.full((1, 17), 3)))


def test_real_stories(real_data, tmp_path):
    transformers.utils.logging.disable_progress_bar()
    folder = write_stories_folder(tmp_path / "stories")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    stories = generate_stories(model, 8, 120, seed=0)
    assert tokenizer.decode(stories[0], skip_special_tokens=True)[0].isupper()
    own = perplexity(model, Examples.from_tokens(stories))
    shakespeare = read_text(real_data / "text" / "tinyshakespeare.txt")[:4000]
    other = perplexity(model, Examples.from_text(tokenizer, shakespeare, length=128))
    # A trained model finds its own stories easy and Shakespeare hard.
    assert own < 6 < 20 < other


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_classifiers_without_a_padding_token_read_the_last_token_of_each_text(name):
    """Also of texts that end with the end of text, with which others are padded otherwise."""
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = None
    tokenizer.add_special_tokens({"eos_token": "</s>"})
    texts = ["the cat sits </s>", "a dog", "the bird sings on the tree", "a cat </s>"]
    model = tiny_model(name, SEQUENCES[name], pad_token_id=None)
    examples = Examples.from_texts(tokenizer, texts)

    def first_logit(examples):
        goal = goal_for(model, examples, lambda output, batch: output.logits[:, 0])
        return goal.loss(np.ones(len(goal.heads)))

    with torch.no_grad():
        alone = [float(model(**tokenizer(text, return_tensors="pt")).logits[0, 0]) for text in texts]
    assert first_logit(examples) == pytest.approx(np.mean(alone), rel=1e-5)
    assert first_logit(replace(examples, padding=tokenizer.eos_token_id)) != pytest.approx(np.mean(alone), rel=1e-2)
    assert model.config.pad_token_id is None
