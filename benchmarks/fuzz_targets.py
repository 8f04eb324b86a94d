"""What `fuzz.py` runs: readers of files, sweeps and model folders; commands are in `fuzz_commands`.

The first inputs of some targets are cases that once failed; all others are drawn at random.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
import io
import json
import os
import shutil
import types
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from fuzz import Attempt, Target, Wrong, forbidden, unwatched
from fuzz_commands import TARGETS as COMMANDS
from fuzz_commands import command
from fuzz_inputs import (
    ODD_TEXT,
    archive_of,
    bomb,
    damaged,
    npy,
    odd_archive,
    odd_document,
    odd_folder,
    odd_safetensors,
)

# More numbers than a file may unpack to, and more bytes than an input may take.
BOMB = 160 * 2**20
TABLE = "o -++|--\nv -+-|-+\nq +--|+-\nk ---|--\n"
CSV = [b"label,one.a,one.b,two.a,two.b\n1,1,2,3,4\n-1,5,6,7,8\n", b"label,a\n1,2\n0,3\n"]


def _attention_arrays() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The two kinds of arrays that `read_arrays` takes."""
    random = np.random.default_rng(1)
    attention = random.random((2, 6, 2, 3, 3))
    attention /= attention.sum(-1, keepdims=True)
    x, y = random.normal(size=(6, 3, 2)), np.sign(random.normal(size=6))
    xi = random.normal(size=(6, 4, 2))
    tokens = {"x": x, "y": y, "attention_1": attention[0], "attention_2": attention[1]}
    return {"xi": xi, "y": y, "xi_test": xi[:2], "y_test": y[:2]}, tokens


def arrays(folder: Path) -> Attempt:
    """npz and csv files of the command `solve`."""
    from thermoformer import read_arrays

    both = _attention_arrays()
    huge = archive_of({"xi.npy": npy(both[0]["xi"], shape="(10000000000, 2, 2)"), "y.npy": npy(both[0]["y"])})
    known = [huge, bomb("xi", BOMB)]

    def attempt(random: Random, place: Path, number: int) -> None:
        content = known[number] if number < len(known) else odd_archive(random, random.choice(both))
        name = "file.npz"
        if number >= len(known) and random.random() < 0.2:
            name, content = "file.csv", damaged(random, random.choice(CSV))
        (place / name).write_bytes(content)
        found = read_arrays(place / name, readout=random.choice(("last", "first", "mean")))
        if not (np.isfinite(found.features.values).all() and np.isfinite(found.labels).all()):
            raise Wrong("arrays that are not finite")

    return attempt


def features(folder: Path) -> Attempt:
    """Features of attention dynamics: npz files, tables of signs and matrices of ±1."""
    from thermoformer._dynamics_files import mean_field
    from thermoformer.dynamics import Features

    Features.from_table(TABLE).save(folder / "patterns.npz")
    Features.from_correlations({role: [[0.5 if role != "o" else 1.0]] for role in "ovqk"}).save(folder / "classes.npz")
    seeds = [dict(np.load(file, allow_pickle=False)) for file in sorted(folder.glob("*.npz"))]
    heads = TABLE.replace("v -", "v1 -").replace("q +", "q1 +").replace("k -", "k1 -")
    tables = [TABLE, heads + "v2 -++|-+\nq2 +-+|+-\nk2 --+|--\n", "o +-\nv +-\nq -+\nk ++\n"]
    tables += ["1,-1,1\n-1,-1,1\n", "a b\n+1 -1\n1.0 1\n", npy(np.array([[1, -1], [1, 1]])).decode("latin-1")]
    huge = archive_of({f"{name}.npy": npy(array, shape="(10000000000,)") for name, array in seeds[0].items()})
    known = [huge, bomb("pattern_o", BOMB), b"\xff\xfe", b"o"]

    def attempt(random: Random, place: Path, number: int) -> None:
        content = odd_archive(random, random.choice(seeds))
        if random.random() < 0.25:
            content = damaged(random, random.choice(tables).encode("latin-1"))
        (place / "features").write_bytes(known[number] if number < len(known) else content)
        mean_field("features", beta=1.0, gamma=220.0, epsilon=0.02, context=random.choice((None, 3)))

    return attempt


def uploads(folder: Path) -> Attempt:
    """npz and csv files that users of the explorer upload."""
    from thermoformer.app.uploads import table, upload_of

    both = _attention_arrays()
    tables = [*CSV, b"1,-1,1\n-1,-1,1\n"]

    def attempt(random: Random, place: Path, number: int) -> None:
        read: Callable[..., Any] = random.choice((upload_of, table))
        ending = random.choice((".npz", ".npz", ".csv", ".csv", ".CSV", "", ".txt"))
        csv = ending.lower() == ".csv"
        content = damaged(random, random.choice(tables)) if csv else odd_archive(random, random.choice(both))
        (place / f"upload{ending}").write_bytes(content)
        read(f"upload{ending}", content)

    return attempt


def links(folder: Path) -> Attempt:
    """Addresses of the explorer's page."""
    import dataclasses

    from thermoformer.app.dynamics_view import DynamicsChoice
    from thermoformer.app.learning_view import LearningChoice
    from thermoformer.app.page import opening

    views = (("learning.", LearningChoice()), ("dynamics.", DynamicsChoice()))
    usual = {
        prefix + field.name: getattr(one, field.name) for prefix, one in views for field in dataclasses.fields(one)
    }

    def attempt(random: Random, place: Path, number: int) -> None:
        address: dict[str, Any] = {"view": random.choice(("Learning", "Dynamics", "", "x"))}
        for name in random.sample(sorted(usual), random.randrange(1, 6)):
            stands = usual[name] if not isinstance(usual[name], tuple) else ",".join(map(str, usual[name]))
            address[name] = random.choice((*ODD_TEXT, str(stands), str(stands) + ",1", ["1", "2"]))
            if random.random() < 0.3:
                address[name] = damaged(random, str(stands).encode()).decode("utf-8", "surrogateescape")
        (place / "address.txt").write_text(repr(address), errors="backslashreplace")
        found = opening(address)
        for sentence in found.problems:
            sentence.encode("utf-8", "strict")  # it goes into the page

    return attempt


def _without_checksum(file: Path) -> bytes:
    """A file as earlier versions wrote it."""
    from safetensors import safe_open
    from safetensors.numpy import save

    with safe_open(file, "numpy") as opened:
        metadata = {name: text for name, text in opened.metadata().items() if name != "checksum"}
        return save({name: opened.get_tensor(name) for name in opened.keys()}, metadata)


def networks(folder: Path) -> Attempt:
    """Networks and checkpoints of a training."""
    import jax.numpy as jnp

    from thermoformer.learning import Architecture, prior_weights
    from thermoformer.networks import AttentionNetwork, load_network, save_network
    from thermoformer.networks.files import TrainingState, read_checkpoint, write_checkpoint

    arch, maps = Architecture((2,), 5), (np.ones((2, 3, 4)),)
    network = save_network(AttentionNetwork(arch, prior_weights(arch, 4, key=0), maps, maps), folder / "network")
    tree = {"values": jnp.ones((2, 3)), "readout": jnp.zeros(4)}
    fresh = TrainingState(0, tree, tree, tree, np.zeros(0), np.zeros((0, 3)), "")
    settings, data = {"width": 5, "heads": [2]}, [0.5, 2.0]
    done = fresh._replace(step=2, losses=np.ones(2), validation=np.ones((1, 3)))
    write_checkpoint(folder / "checkpoint", done, settings, data)
    contents = [(file.read_bytes(), _without_checksum(file)) for file in (network, folder / "checkpoint")]

    def attempt(random: Random, place: Path, number: int) -> None:
        file, which = place / "file.safetensors", random.randrange(2)
        file.write_bytes(odd_safetensors(random, random.choice(contents[which])))
        if which:
            found = read_checkpoint(file, fresh, settings, data)
            if type(found.step) is not int or not isinstance(found.stopped, str) or len(found.losses) != found.step:
                raise Wrong(f"a checkpoint of {found.step!r} steps, stopped {found.stopped!r}")
        else:
            load_network(file)

    return attempt


def data_files(folder: Path) -> Attempt:
    """Files of images, texts, and weights of the stories model."""
    from PIL import Image

    from thermoformer.tasks import text
    from thermoformer.tasks.images import read_characters, read_idx
    from thermoformer.tasks.stories import read_llama, read_tokens

    stream = io.BytesIO()
    Image.fromarray(np.eye(9, dtype=bool)).save(stream, "PNG")
    drawings = {f"images/A/character01/{at:04d}.png": stream.getvalue() for at in range(20)}
    idx = bytes([0, 0, 8, 3]) + np.array([2, 3, 4], ">u4").tobytes() + bytes(24)
    sizes = np.array([4, 6, 1, 2, 2, 5, 8], "<i4")
    llama = sizes.tobytes() + bytes(4 * (20 + 4 + 64 + 4 + 72 + 4 + 16))
    tokens = b"".join(np.float32(at).tobytes() + np.int32(2).tobytes() + b"ab" for at in range(5))
    labelled = b"text\tlabel\nso good\tyes\nso bad\tno\nfine\tyes\n"
    trec = b"NUM:count How many ?\nLOC:city Where is it ?\nHUM:ind Who ?\n"
    sentences = {f"SST-2/{part}.tsv": b"sentence\tlabel\nso good\t1\nso bad\t0\nfine\t1\n" for part in ("train", "dev")}
    os.environ["THERMOFORMER_DATA"] = str(folder)
    for name in ("text/trec", "text/sst2"):
        (folder / name).mkdir(parents=True, exist_ok=True)

    def odd_zip(random: Random, members: dict[str, bytes]) -> bytes:
        if random.random() < 0.4:
            return damaged(random, archive_of(members))
        name = random.choice(sorted(members))
        return archive_of(members | {name: damaged(random, members[name])})

    def odd_gzip(random: Random, content: bytes) -> bytes:
        return (
            damaged(random, gzip.compress(content))
            if random.random() < 0.4
            else gzip.compress(damaged(random, content))
        )

    def attempt(random: Random, place: Path, number: int) -> None:
        kind, file = random.randrange(7) if number > 1 else 1, place / "file"
        makers = (
            lambda: odd_zip(random, drawings),
            lambda: gzip.compress(bytes(2**31)) if number == 0 else odd_gzip(random, idx),
            lambda: damaged(random, labelled),
            lambda: damaged(random, trec),
            lambda: odd_zip(random, sentences),
            lambda: damaged(random, llama),
            lambda: damaged(random, bytes(4) + tokens),
        )
        file.write_bytes(makers[kind]())
        if kind == 0:
            read_characters(file)
        elif kind == 1:
            read_idx(file, axes=3)
        elif kind == 2:
            text.read_text(file) if random.random() < 0.3 else text.read_labelled(file)
        elif kind in (3, 4):
            shutil.copyfile(file, folder / ("text/trec/train_5500.label" if kind == 3 else "text/sst2/SST-2.zip"))
            text.trec("train") if kind == 3 else text.sst2(random.choice(("train", "dev", "test")))
        elif kind == 5:
            read_llama(file)
        else:
            read_tokens(file, 5)

    return attempt


def results(folder: Path) -> Attempt:
    """netCDF files of experiments."""
    import xarray as xr

    from thermoformer.experiments import store

    axes = {"seed": [0, 1], "name": ["a", "b", "c"]}
    seeds = []
    for at, values in enumerate((np.arange(6.0).reshape(2, 3), np.arange(6000.0).reshape(2, 3, 1000))):
        shape = ("seed", "name", "more")[: values.ndim]
        dataset = xr.Dataset({"value": (shape, values), "count": ("seed", [1, 2])}, axes, {"about": "numbers"})
        store.save(dataset, folder / f"{at}.nc", "0123")
        seeds.append((folder / f"{at}.nc").read_bytes())

    def attempt(random: Random, place: Path, number: int) -> None:
        content = random.choice(seeds)
        # Structure is in the first part, and the heap of names may send a reader in circles.
        start = random.choice((0, content.index(b"GCOL")))
        end = start + random.choice((100, 400, 4000, len(content)))
        odd = content[:start] + damaged(random, content[start:end]) + content[end:]
        (place / "results.nc").write_bytes(odd)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            store.load(place / "results.nc", "0123")

    return attempt


# Sweeps. Functions are of this module, so that a folder can name them.


def curve(a: float, b: int, seed: int, p: float = 2.0) -> dict[str, Any]:
    """A number, an array, a whole number and a word."""
    if (a, b) == (2.0, 3):
        raise RuntimeError("no such luck")
    noise = np.random.default_rng(seed).normal(size=3)
    return {"product": p * a * b, "powers": a + noise, "count": b * 7, "word": f"{a} {b}"}


def long_curve(a: float, b: int) -> dict[str, Any]:
    """An array larger than a plain chunk."""
    return {"product": 2.0 * a * b, "powers": np.cos(a * np.arange(700) + b)}


def _same_as_before(found: Any, truth: Any) -> None:
    """Points that a dataset calls done have the values that were computed; others have these or none."""
    for name, values in truth.coords.items():
        if name not in found.coords or not np.array_equal(found[name].values, values.values):
            raise Wrong(f"axis {name} is {found[name].values if name in found else 'gone'}")
    done = found["status"].values == 1
    for name, expected in truth.data_vars.items():
        if name == "seconds":
            continue
        if name not in found:
            raise Wrong(f"result {name} is gone")
        if found[name].shape != expected.shape:
            raise Wrong(f"result {name} has shape {found[name].shape}")
        computed = truth["status"].values == 1
        if name != "status" and not _equal(found[name].values[done & computed], expected.values[done & computed]):
            raise Wrong(f"other values of {name}")
    if (done & (truth["status"].values != 1)).any():
        raise Wrong("points called done that were never computed")


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype.kind in "fc" and other.dtype.kind in "fciub":
        return np.array_equal(one, other.astype(one.dtype), equal_nan=True)
    return bool(np.all(one == other))


def sweep_folders(folder: Path) -> Attempt:
    """Folders of sweeps with one or two damages: what is read must be what was computed."""
    import thermoformer.sweeps as sweeps

    grid = {"a": [1.0, 2.0, 2.5, 4.0], "b": [1, 2, 3]}
    made = {"whole": (curve, {"p": 3.0}), "part": (curve, {"p": 3.0}), "long": (long_curve, {})}
    truths = {}
    for name, (function, fixed) in made.items():
        if not (folder / name).exists():  # a child that crashed may have made them
            sweep = sweeps.Sweep(function, grid, folder / name, fixed=fixed, batch=2)
            sweep.run(only={"a": [1.0, 2.0]} if name == "part" else None, progress=False)
        truths[name] = sweeps.SweepStore(folder / name).dataset().load()
    # What a repaired or finished sweep must hold.
    complete = {"whole": truths["whole"], "part": truths["whole"], "long": truths["long"]}
    known = [("whole", "data.zarr/product/c/3"), ("whole", "data.zarr/powers/c/0"), ("long", "data.zarr/powers/c/1")]

    def attempt(random: Random, place: Path, number: int) -> None:
        name, action = random.choice(sorted(made)), random.randrange(20)
        if number < len(known):
            name, action = known[number][0], 0
        here = place / "sweep"
        shutil.copytree(folder / name, here)
        if number < len(known):
            shutil.rmtree(here / known[number][1])
        else:
            with (place / "damage.txt").open("w") as said:
                for _ in range(random.choice((1, 1, 2))):
                    if any(path.is_file() for path in here.rglob("[!.]*")):
                        print(odd_folder(random, here), file=said)
        store = sweeps.SweepStore(here)
        if action < 12:
            _same_as_before(store.dataset().load(), truths[name])
        elif action < 15:
            command("sweep", "status", here, *random.choice(((), ("--json",))))
        elif action < 16 and random.random() < 0.2:
            command("sweep", "show", here)
        else:
            function = made[name][0]
            found = sweeps.Sweep.from_store(here, function).run(progress=False, retry=random.random() < 0.2).load()
            _same_as_before(found, complete[name])

    return attempt


class Slope:
    """A function with state."""

    def __init__(self, p: Any) -> None:
        self.p = p

    def __call__(self, a: float) -> dict[str, Any]:
        return {"value": a * float(np.sum(self.p))}

    def method(self, a: float) -> dict[str, Any]:
        return self(a)


def scaled(a: float, p: Any) -> dict[str, Any]:
    """A number that depends on an argument of any kind."""
    return {"value": a * float(np.sum(p.p if isinstance(p, Slope) else p[0] if isinstance(p, tuple) else p))}


def _functions(kind: int, p: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A function that multiplies by p, which comes with it in one of many ways; and fixed arguments."""

    def closed(a: float) -> dict[str, Any]:
        return scaled(a, p)

    def by_default(a: float, p: Any = p) -> dict[str, Any]:
        return scaled(a, p)

    def by_keyword(a: float, *, p: Any = p) -> dict[str, Any]:
        return scaled(a, p)

    inner = functools.partial(scaled, p=p)
    ways: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (functools.partial(scaled, p=p), {}),
        (closed, {}),
        (by_default, {}),
        (by_keyword, {}),
        (Slope(p), {}),
        (Slope(p).method, {}),
        (lambda a: inner(a), {}),
        (scaled, {"p": p}),
        (functools.partial(functools.partial(scaled), p=p), {}),
    ]
    return ways[kind % len(ways)]


_NAMES = (
    "status",
    "seconds",
    "a/b",
    ".",
    "..",
    "",
    "c",
    "zarr.json",
    "x y",
    "é",
    "a.b",
    "data.zarr",
    "seed",
    "__x",
    "n" * 300,
)


def sweep_calls(folder: Path) -> Attempt:
    """Sweeps gone on with under another argument, and axes and results of odd names."""
    from thermoformer.sweeps import Sweep

    large = np.arange(2000.0)
    pairs = [(2, 9), (2, 2), (2.0, 2.5), (large, large + (np.arange(2000) == 900)), ((large,), (large + (large == 9),))]
    pairs += [(Slope(2), Slope(9)), ([1, 2], [1, 3]), (np.float32(1), np.float32(3)), (True, False)]

    def resumed(random: Random, place: Path, number: int) -> None:
        way, pair = number % 9, random.choice(pairs) if number >= 9 else pairs[0]
        first, fixed = _functions(way, pair[0])
        Sweep(first, {"a": [1.0, 2.0, 3.0]}, place / "sweep", fixed=fixed).run(only={"a": [1.0]}, progress=False)
        second, fixed = _functions(way, pair[1])
        found = Sweep(second, {"a": [1.0, 2.0, 3.0]}, place / "sweep", fixed=fixed).run(progress=False)
        expected = [scaled(a, pair[1])["value"] for a in (1.0, 2.0, 3.0)]
        if found.value.values.tolist() != expected:
            raise Wrong(f"{found.value.values.tolist()} where {expected} is right")

    def named(random: Random, place: Path, number: int) -> None:
        axis, name = random.choice((*_NAMES, "width")), random.choice((*_NAMES, "value"))
        if number < len(_NAMES):
            axis, name = (_NAMES[number], "value") if _NAMES[number].isidentifier() else ("width", _NAMES[number])
        found = Sweep(lambda **given: {name: 2.0 * given[axis]}, {axis: [5.0, 6.0]}, place / "sweep").run(
            progress=False
        )
        if name not in found or axis not in found or found[name].values.tolist() != [10.0, 12.0]:
            raise Wrong(f"result {name!r} over {axis!r} is {found.get(name)}")
        if found[axis].values.tolist() != [5.0, 6.0]:
            raise Wrong(f"axis {axis!r} is {found[axis].values.tolist()}")

    def attempt(random: Random, place: Path, number: int) -> None:
        (resumed if number % 2 else named)(random, place, number // 2)

    return attempt


def hostile_git(folder: Path) -> Attempt:
    """Sweeps in a repository whose configuration names programs to run."""
    from thermoformer.sweeps import Sweep

    nowhere = types.FunctionType(long_curve.__code__.replace(co_filename="<nowhere>"), globals(), "nowhere")
    keys = (
        "core.fsmonitor",
        "core.sshCommand",
        "core.hooksPath",
        "diff.external",
        "filter.x.clean",
        "filter.x.process",
    )
    keys += ("core.pager", "core.editor", "gpg.program", "uploadpack.packObjectsHook", "core.alternateRefsCommand")

    def attempt(random: Random, place: Path, number: int) -> None:
        import subprocess

        def git(*arguments: str) -> None:
            usual = ["git", "-c", "user.name=x", "-c", "user.email=x", *arguments]
            with unwatched():
                subprocess.run(usual, cwd=place, check=True, capture_output=True)

        git("init", "-q")
        (place / "module.py").write_text("def double(a, b):\n    return {'value': 2.0 * a * b}\n")
        (place / ".gitattributes").write_text("* filter=x diff=x\n")
        git("add", "module.py")
        git("commit", "-qm", "x")
        program = place / "program"
        program.write_text(f"#!/bin/sh\ntouch {place / 'was-run'}\nexec cat\n")
        program.chmod(0o755)
        for key in keys if number < 2 else random.sample(keys, 3):
            git("config", key, str(program))
        (place / "module.py").write_text("def double(a, b):\n    return {'value': 2.0 * b * a}\n")
        os.utime(place / "module.py", (1, 1))
        (place / "was-run").unlink(missing_ok=True)
        spec = importlib.util.spec_from_file_location(f"hostile_{number}", place / "module.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        function = module.double if number % 2 else nowhere
        with unwatched():  # git itself may be run
            Sweep(function, {"a": [1.0], "b": [2]}, place / "sweep").run(progress=False)
        if (place / "was-run").exists():
            raise Wrong("a program that the configuration of git names was run")

    return attempt


def models(folder: Path) -> Attempt:
    """Folders of pretrained models: read, pruned, saved and read again."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers
    from transformers.integrations import hub_kernels

    from thermoformer.experiments.heads.inputs import load_model
    from thermoformer.transformers import load_pruned, prune_heads, save_pruned

    torch.load = forbidden("torch.load")
    hub_kernels.get_kernel = forbidden("the loader of kernels")
    # Without the package kernels the loader stops just short of loading.
    hub_kernels.is_kernels_available = lambda *_, **__: True
    sizes = {"vocab_size": 12, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    usual = {"intermediate_size": 8, "max_position_embeddings": 16}
    small = (
        ("bert", transformers.BertModel(transformers.BertConfig(**sizes, **usual))),
        (
            "gpt",
            transformers.GPT2LMHeadModel(
                transformers.GPT2Config(**sizes, n_positions=16, bos_token_id=1, eos_token_id=2)
            ),
        ),
        ("llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **usual, num_key_value_heads=1))),
    )
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = Tokenizer(WordLevel({"<unk>": 0, "<pad>": 1, "the": 2, "cat": 3}, unk_token="<unk>"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", pad_token="<pad>")
    for name, model in small:
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    if not (folder / "pruned").exists():
        save_pruned(prune_heads(small[0][1], [(0, 1)]), folder / "pruned", tokenizer=tokenizer)

    def with_index(place: Path, shard: str, content: bytes | None = None) -> None:
        weights = place / "model.safetensors"
        names = json.loads(weights.read_bytes()[8 : 8 + int.from_bytes(weights.read_bytes()[:8], "little")])
        index = {"metadata": {}, "weight_map": {name: shard for name in names if name != "__metadata__"}}
        if not shard.startswith(("/", "..")):
            (place / shard).write_bytes(weights.read_bytes() if content is None else content)
        weights.unlink()
        (place / "model.safetensors.index.json").write_text(json.dumps(index))

    def zipped(place: Path) -> None:
        with_index(
            place,
            "weights.bin",
            archive_of({"archive/data.pkl": b"\x80\x02}.", "archive/version": b"3\n"}, zipfile.ZIP_STORED),
        )

    def entries(**given: Any) -> Callable[[Path], None]:
        def edit(place: Path) -> None:
            config = json.loads((place / "config.json").read_text())
            (place / "config.json").write_text(json.dumps(config | given))

        return edit

    def cut(place: Path) -> None:
        content = (place / "model.safetensors").read_bytes()
        (place / "model.safetensors").write_bytes(content[: len(content) // 2])

    known: list[Callable[[Path], None]] = [
        zipped,
        functools.partial(with_index, shard="weights.bin"),
        functools.partial(with_index, shard="../../../etc/hostname"),
        cut,
        *(
            entries(attn_implementation=name)
            for name in ("org/kernel", "org/kernel:f", "no-such", "flash_attention_2", 3)
        ),
        *(entries(_attn_implementation=name) for name in ("org/kernel", "kernels-community/flash-attn2")),
        entries(auto_map={"AutoModel": "modeling.Model", "AutoConfig": "x--y.Z"}),
        *(entries(hidden_act=value) for value in ("no-such", None, 3, [])),
        *(entries(dtype=value) for value in ("no-such", "float8_e4m3fn", 7, "int8", "complex64")),
        *(entries(torch_dtype=value) for value in ("no-such", [])),
        *(entries(num_attention_heads=value) for value in (0, -1, 3, 10**9, "two", None)),
        *(entries(num_hidden_layers=value) for value in (0, -1, 10**6, 1.5, "x")),
        *(entries(hidden_size=value) for value in (0, -8, 10**12, "8")),
        entries(model_type="t5", architectures=["T5ForConditionalGeneration"]),
        entries(model_type="no-such"),
        entries(architectures=[3]),
        entries(architectures="BertModel"),
        entries(quantization_config={"quant_method": "bitsandbytes"}),
        entries(id2label={"x": "y"}),
        entries(rope_parameters="x"),
        entries(vocab_size=10**12),
        entries(tokenizer_class="no-such"),
    ]

    def attempt(random: Random, place: Path, number: int) -> None:
        names = ("bert", "gpt", "llama", "pruned")
        name = names[number % 2] if number < 2 * len(known) else random.choice(names)
        here = place / "model"
        shutil.copytree(folder / name, here)
        if number < 2 * len(known):
            known[number // 2](here)
        elif random.random() < 0.5:
            config = odd_document(random, json.loads((here / "config.json").read_text()))
            (here / "config.json").write_text(json.dumps(config))
        elif random.random() < 0.4:
            content = (here / "model.safetensors").read_bytes()
            (here / "model.safetensors").write_bytes(odd_safetensors(random, content))
        else:
            odd_folder(random, here)
        model, words = load_model(here, language=name in ("gpt", "llama"))
        smaller = prune_heads(model, [(0, 0)])
        saved = save_pruned(smaller, place / "saved", tokenizer=words)
        try:
            load_pruned(saved)
        except ValueError as error:
            raise Wrong("a model of our own cannot be read") from error

    return attempt


TARGETS = [
    Target("arrays", arrays, 24),
    Target("features", features, 24),
    Target("uploads", uploads, 20),
    Target("links", links, 10, batch=5000),
    Target("networks", networks, 12),
    Target("data files", data_files, 10),
    Target("results", results, 4, most=1000, batch=500),
    Target("sweep folders", sweep_folders, 8, most=5000, batch=500),
    Target("sweep calls", sweep_calls, 2, most=1000, batch=250),
    Target("git", hostile_git, 1, most=40),
    Target("models", models, 3, most=2000, batch=250, seconds=60),
    *COMMANDS,
]
