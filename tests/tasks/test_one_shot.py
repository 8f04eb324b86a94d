from __future__ import annotations

import jax
import numpy as np
import pytest

from thermoformer.tasks import OneShotTask, one_shot_tokens

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (6, 5, 32, 32), np.uint8)
# Batch 4 of part "test" under seed 3: written down so that it can never change unseen.
EXPECTED_CLASSES = [[4, 2, 4], [2, 4, 2], [5, 1, 1], [2, 5, 5]]
EXPECTED_DRAWINGS = [[2, 4, 0], [0, 3, 4], [2, 0, 2], [1, 2, 0]]
EXPECTED_LABELS = [-1.0, 1.0, 1.0, 1.0, 1.0, -1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0]


def tokens_by_hand(task, images, label_ids):
    """Patch by patch, in float64."""
    rows = []
    for image, label in zip(images, label_ids, strict=True):
        for row in range(0, 32, task.patch):
            for column in range(0, 32, task.patch):
                pixels = image[row : row + task.patch, column : column + task.patch].reshape(-1) / 255
                pixels = np.repeat(pixels, task.channels)
                pixels = (pixels - pixels.mean()) / np.sqrt(pixels.var() + 1e-5)
                rows.append(pixels + task.label_embedding[label])
    for place, row in enumerate(rows):
        for feature in range(task.token_width):
            angle = place / 10_000 ** ((feature - feature % 2) / task.token_width)
            row[feature] += np.cos(angle) if feature % 2 else np.sin(angle)
    return np.array(rows)


@pytest.mark.parametrize(("channels", "patch", "rotations"), [(1, 8, False), (3, 16, True)])
def test_tokens_are_patches_with_position_and_label(channels, patch, rotations):
    task = OneShotTask(IMAGES, channels=channels, patch=patch, rotations=rotations)
    x, labels = task.batch(3, 16)
    assert x.shape == (16, task.tokens, task.token_width) == (16, 3 * (32 // patch) ** 2, channels * patch**2)
    x, labels, drawn = jax.device_get((x, labels, task.draw(3, 16)))
    np.testing.assert_array_equal(labels, drawn.labels)
    for example in range(16):
        images = [
            np.rot90(IMAGES[kind, drawing], turn)
            for kind, drawing, turn in zip(
                drawn.classes[example], drawn.drawings[example], drawn.quarter_turns[example], strict=True
            )
        ]
        expected = tokens_by_hand(task, images, drawn.label_ids[example])
        np.testing.assert_allclose(x[example], expected, atol=2e-5)
        given = one_shot_tokens(np.array([images]), drawn.label_ids[example : example + 1], task)
        np.testing.assert_allclose(given[0], expected, atol=2e-5)


@pytest.mark.parametrize("rotations", [False, True])
def test_what_a_sequence_means(rotations):
    drawn = OneShotTask(IMAGES, rotations=rotations).draw(0, 2000)
    classes, drawings, turns, label_ids, labels = (np.asarray(part) for part in drawn)
    assert (classes[:, 0] != classes[:, 1]).all() and (label_ids[:, 2] == 2).all()
    assert (np.sort(label_ids[:, :2], axis=1) == [0, 1]).all()
    support = np.where(classes[:, 2] == classes[:, 0], 0, 1)
    everyone = np.arange(2000)
    # The query shows the class, turned the same way, of a support image; it is another drawing of it.
    assert (classes[everyone, support] == classes[:, 2]).all() and (turns[everyone, support] == turns[:, 2]).all()
    assert (drawings[everyone, support] != drawings[:, 2]).all()
    np.testing.assert_array_equal(labels, np.where(label_ids[everyone, support] == 1, 1.0, -1.0))
    assert labels.sum() == 0 and set(turns.ravel()) == ({0, 1, 2, 3} if rotations else {0})
    # Nothing but the images tells: the label is even given order of labels and position of the match.
    for order in (0, 1):
        assert abs(labels[label_ids[:, 0] == order].mean()) < 0.1
    assert abs(support.mean() - 0.5) < 0.05
    for kind in range(6):
        assert abs(np.mean(classes[:, 0] == kind) - 1 / 6) < 0.04 and abs(np.mean(classes[:, 1] == kind) - 1 / 6) < 0.04


def test_a_batch_is_the_same_whatever_came_before():
    first = OneShotTask(IMAGES)
    for number in range(4):
        first.batch(number, 16)
    again = OneShotTask(IMAGES)
    np.testing.assert_array_equal(first.batch(4, 16).x, again.batch(4, 16).x)
    # The same in every process and on every machine.
    drawn = OneShotTask(IMAGES, part="test", seed=3).draw(4, 16)
    assert drawn.classes[:4].tolist() == EXPECTED_CLASSES and drawn.drawings[:4].tolist() == EXPECTED_DRAWINGS
    assert drawn.labels.tolist() == EXPECTED_LABELS


def test_batches_seeds_and_parts_differ():
    tasks = [OneShotTask(IMAGES), OneShotTask(IMAGES, seed=1), OneShotTask(IMAGES, part="test")]
    draws = [task.draw(0, 16) for task in tasks] + [tasks[0].draw(1, 16)]
    seen = {np.asarray(drawn.classes).tobytes() for drawn in draws}
    assert len(seen) == 4
    # The label embedding belongs to the network, not to the sequences.
    np.testing.assert_array_equal(tasks[0].label_embedding, tasks[1].label_embedding)
    assert not np.array_equal(tasks[0].label_embedding, OneShotTask(IMAGES, embedding_seed=1).label_embedding)


def test_many_sequences_are_the_batches_in_a_row():
    task = OneShotTask(IMAGES)
    x, labels = task.sequences(150, first=2)
    assert x.shape == (150, 48, 64) and labels.shape == (150,)
    np.testing.assert_array_equal(x[:128], task.batch(2).x)
    np.testing.assert_array_equal(labels[128:], task.batch(3).labels[:22])


def test_a_blank_image_is_its_position_and_label():
    task = OneShotTask(np.zeros_like(IMAGES))
    x, _ = task.batch(0, 16)
    label_ids = np.asarray(task.draw(0, 16).label_ids)
    expected = np.repeat(task.label_embedding[label_ids], 16, axis=1) + task.positions
    np.testing.assert_allclose(x, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": IMAGES.astype(float)}, "images: got float64.* expected a uint8 array \\[class, drawing"),
        ({"images": [1]}, "images: got list; expected a uint8 array"),
        ({"images": IMAGES[0]}, "images: got uint8.* expected a uint8 array"),
        ({"images": IMAGES[:1]}, "images: got 1 classes of 5 drawings; expected 2 or more of both"),
        ({"images": IMAGES[:, :1]}, "images: got 6 classes of 1 drawings"),
        ({"images": IMAGES[..., :16]}, "images: got 32 × 16 pixels"),
        ({"patch": 7}, "images: got 32 × 32 pixels; expected squares that 7 × 7 patches fill"),
        ({"patch": 0}, "patch: got 0; expected a whole number, 1 or more"),
        ({"channels": 2}, "channels: got 2; expected 1 or 3"),
        ({"part": 1}, "part: got 1; expected a name"),
        ({"seed": -1}, "seed: got -1; expected a whole number, zero or more"),
        ({"embedding_seed": 0.5}, "embedding_seed: got 0.5"),
        ({"seed": 2**70}, "seed: got 1180591620717411303424; expected a whole number below 2"),
        ({"rotations": "no"}, "rotations: got 'no'; expected True or False"),
    ],
)
def test_bad_tasks(arguments, message):
    with pytest.raises(ValueError, match=message):
        OneShotTask(**({"images": IMAGES} | arguments))


def test_bad_batches_and_triples():
    task = OneShotTask(IMAGES)
    with pytest.raises(ValueError, match="number: got -1"):
        task.batch(-1)
    with pytest.raises(ValueError, match="examples: got 0"):
        task.draw(0, 0)
    with pytest.raises(ValueError, match="examples: got 0"):
        task.sequences(0)
    with pytest.raises(ValueError, match="first: got -2"):
        task.sequences(1, first=-2)
    triple = IMAGES[:1, :3]
    with pytest.raises(ValueError, match="images: got float64.* expected uint8 \\[example, 3, 32, 32\\]"):
        one_shot_tokens(triple / 2, [[0, 1, 2]], task)
    with pytest.raises(ValueError, match="label_ids: got shape \\(1, 3\\)"):
        one_shot_tokens(triple, [[0, 1, 3]], task)
