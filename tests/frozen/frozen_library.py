"""What `frozen.py` records of the library, a function a section.

Each runs in an empty folder and returns plain values; `quick` asks for the
part of them that the suite has time for.
"""

import functools
import os
import pathlib

import frozen_cases as cases
import keras
import numpy as np
import tensorflow as tf
from frozen_forks import (
    array_hash,
    attempt,
    digest,
    exact,
    file_hashes,
    forked,
    numbers,
    plain,
    rounded,
    run,
    short,
)
from strange_strings import strange_strings
from weight_samples import write_samples

import bert_keras
from bert_keras.data.batches import evaluation_dataset, pretraining_dataset

# All that is no public name of the package: what moves is edited here.
from bert_keras.data.sampling import SamplingRules
from bert_keras.modeling.pretrainer import pretraining_losses
from bert_keras.modeling.task_models import span_losses
from bert_keras.modeling.weights import enable_lora, published_weights
from bert_keras.text.windows import windows
from bert_keras.text.wordpiece import WordPiece

for _name in bert_keras.__all__:  # before any fork, not in each
    getattr(bert_keras, _name)

TEXTS = ["An hour well spent", "bad film!", "", "the goat [MASK] over. " * 9]


def command(name, flags):
    """The command line of a script."""
    return f"{cases.SCRIPTS[name]} {flags}"


def encoder(**arguments):
    sizes = {
        "vocabulary_size": len(cases.PIECES),
        "num_layers": 2,
        "num_heads": 2,
        "hidden_dim": 16,
        "intermediate_dim": 24,
        "max_sequence_length": 64,
    }
    return bert_keras.BertEncoder(**{**sizes, **arguments})


def filled(model, scale=0.3):
    """Every weight at random, by its name alone."""
    for name, weight in published_weights(model).items():
        draw = np.random.default_rng(int(digest(name), 16))
        mean = 1.0 if name.endswith("gamma") else 0.0
        weight.assign(draw.normal(mean, scale, weight.shape))
    return model


def preprocessor(sequence_length=16, **arguments):
    tokenizer = bert_keras.WordPieceTokenizer(cases.PIECES, **arguments)
    return bert_keras.BertPreprocessor(tokenizer, sequence_length)


def model_folder(folder, make=encoder):
    """A filled model saved with its preprocessor."""
    filled(make()).save_preset(folder, preprocessor())


def weights_hash(model):
    return array_hash(
        {name: w.numpy() for name, w in published_weights(model).items()}
    )


def write_books(folder="books"):
    os.mkdir(folder)
    for name, text in cases.corpus().items():
        pathlib.Path(folder, name).write_text(text, encoding="utf-8")
    pathlib.Path("vocab.txt").write_text(
        "".join(f"{piece}\n" for piece in cases.PIECES), encoding="utf-8"
    )


SETTINGS = {
    "uncased": {},
    "cased": {"lowercase": False},
    "lower case with accents": {"strip_accents": False},
    "as transformers": {"max_word_length": 100, "keep_special_tokens": True},
}


def tokens(quick):
    """Ids of hard strings by all three ways, offsets, rows, masks."""
    settings = list(SETTINGS)[: 2 if quick else None]
    return {
        **{name: forked(_ids, SETTINGS[name]) for name in settings},
        "rows": forked(_rows),
        "masks": forked(_masks),
        "learned": forked(_learned),
    }


def _ids(settings):
    strings = [text.encode() for text in cases.HARD]
    strings += strange_strings(100, seed=7)
    reference = WordPiece(cases.PIECES, **settings)
    fast = bert_keras.WordPieceTokenizer(cases.PIECES, **settings)
    exact_road = bert_keras.WordPieceTokenizer(
        cases.PIECES, portable=True, **settings
    )
    ids = [reference.ids(text) for text in strings]
    found = {
        "in full": [
            short(" ".join(map(str, row))) for row in ids[: len(cases.HARD)]
        ],
        "reference": _by_string(ids),
        "exact is the reference": exact_road(strings).to_list() == ids,
        "fast is the reference": fast(strings).to_list() == ids,
        "texts": short(str(fast.detokenize(fast(strings[2:4])).numpy())),
    }
    for unit in ("characters", "bytes"):
        of_unit = fast.tokenize_with_offsets(strings, unit)
        rows = zip(*(value.to_list() for value in of_unit), strict=True)
        found[unit] = _by_string(list(rows))
    return found


def _by_string(rows):
    """Three digits of a hash for each string."""
    return " ".join(digest(row)[:3] for row in rows)


def _rows():
    preprocess, texts = preprocessor(), [*TEXTS, *cases.HARD[:5]]
    packer, tokenizer = preprocess.packer, preprocess.tokenizer
    pair = tokenizer(texts), tokenizer(texts[::-1])
    longest = bert_keras.BertPreprocessor(tokenizer, 16, pad_to_longest=True)
    found = {
        "single": preprocess(texts),
        "pair": preprocess((texts, texts[::-1])),
        "three": preprocess((texts, texts[::-1], texts)),
        "to the longest": longest(["a", "the goat"]),
        "one": preprocess("the goat"),
        "windows": _windows(pair[0]),
        "cut": packer.count_cut(pair),
    }
    configs = preprocess.get_config(), packer.get_config()
    return {
        **{name: _arrays(value) for name, value in found.items()},
        "configurations": digest(configs),
    }


def _windows(ids):
    """Windows of 6 ids, each 3 after the one before it."""
    cut = windows(ids, 6, 3)
    ragged = {"ids": cut.ids, "places": cut.places}
    rows = {name: values.to_tensor() for name, values in ragged.items()}
    return {**rows, "text": cut.text, "start": cut.start}


def _arrays(values):
    """Name -> rows of numbers, in full where short."""
    if not isinstance(values, dict):
        values = {"": values}
    return {name: plain(np.asarray(v)) for name, v in values.items()}


def _masks():
    preprocess = preprocessor()
    rows = preprocess((TEXTS, TEXTS[::-1]))
    kinds = {
        "usual": {},
        "words": {"whole_words": True, "mask_selection_rate": 0.3},
        "runs": {"max_ngram": 3, "mask_token_rate": 0.5},
    }
    found = {}
    for name, settings in kinds.items():
        masker = bert_keras.TokenMasker(cases.PIECES, 4, **settings)
        found[name] = masker(rows["token_ids"], seed=(3, 4))
    return {name: _arrays(value) for name, value in found.items()}


def _learned():
    texts = list(cases.corpus().values())
    learned = {
        "usual": bert_keras.learn_vocabulary(texts, 150),
        "cased": bert_keras.learn_vocabulary(
            texts, 120, lowercase=False, unused=4, min_count=3
        ),
    }
    return {name: short(" ".join(v)) for name, v in learned.items()}


def data(quick):
    """Bytes of records and stores, and batches of both."""
    write_books()
    names = list(cases.BUILDS)[: 1 if quick else None]
    found = {"files": {}, "batches": {}}
    for name in names:
        run(
            command(
                "create_pretraining_data",
                "--input=books --vocabulary=vocab.txt --held_out_share=0.2 "
                f"--workers=1 --output={name} {cases.BUILDS[name]}",
            )
        )
        hashes = {
            path: value
            for path, value in file_hashes(name).items()
            if value
            and (not path.startswith("tokens") or name in ("usual", "lines"))
        }
        found["files"][name] = hashes
    found["batches"] = {
        name: forked(_batches, name) for name in names if name != "lines"
    }
    if not quick:
        pathlib.Path("more").mkdir()
        found["tools"] = _vocabularies()
    return found


def _batches(name):
    rules = {
        "usual": SamplingRules(32, 5),
        "words": SamplingRules(48, 8, 0.5, 0.2, (70, 20, 10), True, 3),
        "packed": SamplingRules(64, 10, packed=True),
    }[name]
    found = {}
    for kind, source in (("store", "tokens/train"), ("records", "train")):
        source = os.path.join(name, source)
        given = rules if kind == "store" else None
        for step in (0, 1, 1000):
            batches = pretraining_dataset(source, 8, 3, step, rules=given)
            (batch,) = batches.take(1)
            found[f"{kind}, step {step}"] = array_hash(batch)
        held_out = source.replace("train", "held_out")
        batches = evaluation_dataset(held_out, 8, given)
        found[f"{kind}, held out"] = array_hash(list(batches))
    return found


def _vocabularies():
    found = {}
    for name, flags in (
        ("train_vocabulary", "--size=160 --unused=5"),
        ("extend_vocabulary", "--vocabulary=vocab.txt --words=6"),
    ):
        output = f"more/{name}.txt"
        flags += f" --input=books --output={output} --workers=1"
        run(command(name, flags))
        found[name] = digest(pathlib.Path(output).read_bytes())
    return found


CLASSES = {
    "BertEncoder": {},
    "BertPretrainer": {},
    "BertCausalModel": {},
    "BertClassifier": {"labels": ["no", "maybe", "yes"], "dropout": 0.2},
    "BertSpanPredictor": {"may_be_none": True},
    "BertTagger": {"labels": ["O", "B-PER", "I-PER"]},
    "BertChooser": {},
}
# Model -> its class, its arguments and the encoder's.
VARIANTS = {
    **{
        name: (name, arguments, {"attention": "left_to_right"})
        if name == "BertCausalModel"
        else (name, arguments, {})
        for name, arguments in CLASSES.items()
    },
    "exact GELU": ("BertChooser", {}, {"activation": "gelu_exact"}),
    "three segments": ("BertEncoder", {}, {"num_segments": 3}),
    "epsilon": ("BertEncoder", {}, {"norm_epsilon": 1e-3}),
    "half precision": ("BertEncoder", {}, {"dtype": "mixed_bfloat16"}),
    "rematerialized": ("BertEncoder", {}, {"rematerialize": True}),
    "from the right": (
        "BertCausalModel",
        {},
        {"attention": "right_to_left"},
    ),
    "regression": ("BertClassifier", {"problem": "regression"}, {}),
    "multi": (
        "BertClassifier",
        {"labels": ["a", "b"], "problem": "multi", "bilstm_dim": 4},
        {},
    ),
    "tagger with a BiLSTM": (
        "BertTagger",
        {"labels": ["O", "PER"], "bilstm_dim": 4},
        {},
    ),
    "packed": ("BertPretrainer", {"examples_per_row": 4}, {}),
}


def build(name):
    """A filled model of `VARIANTS`."""
    kind, arguments, of_encoder = VARIANTS[name]
    body = encoder(**of_encoder)
    if kind == "BertEncoder":
        return filled(body)
    return filled(getattr(bert_keras, kind)(body, **arguments))


def inputs_of(model, batch=4, length=12):
    """Rows of random tokens in two segments, each with more padding."""
    draw = np.random.default_rng(5)
    size = getattr(model, "encoder", model).vocabulary_size
    places = np.arange(length)
    lengths = length - np.arange(batch)[:, None] % 8
    inputs = {
        "token_ids": draw.integers(5, size, (batch, length)),
        "segment_ids": np.tile(places >= 5, (batch, 1)),
        "padding_mask": places < lengths,
    }
    kind = type(model).__name__
    if kind == "BertPretrainer":
        inputs["mask_positions"] = draw.integers(1, 6, (batch, 3))
        if model.examples_per_row:
            ids = np.minimum(1 + places // 4, 3) * (places < lengths)
            inputs["example_ids"] = ids
            inputs["position_ids"] = np.tile(places % 4, (batch, 1))
    inputs = {name: x.astype("int32") for name, x in inputs.items()}
    if kind == "BertChooser":
        inputs = {k: x.reshape(-1, 2, length) for k, x in inputs.items()}
    return inputs


def outputs_of(model, **arguments):
    """Name -> numbers of a model's outputs."""
    outputs = model(inputs_of(model), **arguments)
    if not isinstance(outputs, dict):
        outputs = {"": outputs}
    return {
        name: numbers(np.asarray(keras.ops.cast(value, "float32")))
        for name, value in outputs.items()
        if not isinstance(value, list | tuple)
    }


def models(quick):
    """Outputs, names of weights and configurations of every model."""
    names = list(VARIANTS)[: len(CLASSES) if quick else None]
    found = forked(_models, names)
    if not quick:
        found["fresh"] = forked(_fresh)
        found["LoRA"] = forked(_lora)
    return found


def _models(names):
    found = {}
    for name in names:
        model = build(name)
        found[name] = {
            # Sums of 8 bits differ from one kind of processor to another.
            **(
                {"outputs": exact(outputs_of(model))}
                if name == "half precision"
                else outputs_of(model)
            ),
            "weights": digest(
                {n: w.shape for n, w in published_weights(model).items()}
            ),
            "configuration": digest(model.get_config()),
            "parameters": model.count_params(),
        }
    model = build("BertEncoder")
    states = model(inputs_of(model), hidden_states=True)["hidden_states"]
    found["hidden states"] = [numbers(state) for state in states]
    return found


def _fresh():
    """New weights and dropout, from a seed."""
    keras.utils.set_random_seed(4)
    model = bert_keras.BertClassifier(encoder(), labels=["no", "yes"])
    found = {
        name: numbers(weight)
        for name, weight in list(published_weights(model).items())[:6]
    }
    found["training"] = outputs_of(filled(model), training=True)[""]
    return found


def _lora():
    model = build("BertClassifier")
    keras.utils.set_random_seed(4)
    enable_lora(model.encoder, 2)
    names = sorted(weight.path for weight in model.trainable_weights)
    return {"trainable": digest(names), **outputs_of(model)}


FORMATS = ("bert_keras", "huggingface", "google", "keras_hub")


def weights(quick):
    """Vectors and logits of a sample of every format that is read."""
    return forked(_read_samples, quick)


def conversions(quick):
    """Files and logits of every model in every format that is written."""
    found = {}
    for name in CLASSES:
        forked(_save, name)
        found[name] = {
            "bert_keras": {**file_hashes(name), **forked(_loaded, name, name)}
        }
        for kind in FORMATS[1:]:
            folder = f"{name}-{kind}"
            flags = f"--source={name} --output={folder} --format={kind}"
            done = attempt(command("convert_checkpoint", flags))
            result = {"code": done.code}
            if not done.code:
                result |= file_hashes(folder, r"\.h5$")
                result |= forked(_loaded, name, folder)
            found[name][kind] = result
    return found


def _save(name):
    model_folder(name, functools.partial(build, name))


def _loaded(name, folder):
    model = getattr(bert_keras, name).from_preset(folder)
    report = model.load_report
    text = bert_keras.BertPreprocessor.from_preset(folder)
    return {
        "report": digest([report.initialised, report.skipped]),
        "text": digest(text.get_config()),
        **outputs_of(model),
    }


def _read_samples(quick):
    keras.utils.set_random_seed(2)
    found = {}
    for name, path in write_samples(os.getcwd()).items():
        if quick and name in ("huggingface_sharded", "google_zip"):
            continue
        model = bert_keras.BertEncoder.from_preset(path)
        text = bert_keras.BertPreprocessor.from_preset(path)
        found[name] = {
            "ids": plain(np.asarray(text(["Good, goodly!"])["token_ids"])),
            "vectors": _of_ids(model)["sequence_output"],
        }
        if not quick:
            keras.utils.set_random_seed(3)
            kind = bert_keras.BertClassifier
            given = {"labels": ["no", "yes"]}
            model = kind.from_preset(path, **given)
            found[name]["logits"] = _of_ids(model)
            found[name]["new"] = model.load_report.initialised
    return found


def _of_ids(model):
    ids = np.array([[2, 5, 6, 7, 3], [2, 5, 3, 0, 0]], "int32")
    outputs = model({"token_ids": ids, "padding_mask": (ids > 0) * 1})
    return (
        {k: numbers(v) for k, v in outputs.items()}
        if isinstance(outputs, dict)
        else numbers(outputs)
    )


class _Losses(keras.callbacks.Callback):
    """The loss of each step, and the hash of the weights at some."""

    def __init__(self, hashed):
        super().__init__()
        self.losses, self.hashes, self.hashed = [], {}, hashed

    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()  # else a loss is a mean over those before

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))
        if len(self.losses) in self.hashed:
            hashed = weights_hash(self.model)
            self.hashes[f"weights at {len(self.losses)}"] = exact(hashed)


STEPS, QUICK_STEPS = 100, 20


def training(quick):
    """The loss of each step of every kind of training."""
    write_books()
    run(
        command(
            "create_pretraining_data",
            "--input=books --vocabulary=vocab.txt --output=data --workers=1 "
            "--held_out_share=0.2 --norecords",
        )
    )
    kinds = [*TRAINED][: 2 if quick else None]
    return {kind: forked(_train, kind, quick) for kind in kinds}


def _train(kind, quick):
    keras.utils.set_random_seed(1)
    make, optimizer, settings = TRAINED[kind]
    model, loss, batches = make()
    steps = QUICK_STEPS if quick else STEPS
    model.compile(optimizer(), loss, **settings)
    kept = _Losses({QUICK_STEPS, STEPS})
    model.fit(batches.take(steps), shuffle=False, callbacks=[kept], verbose=0)
    return {"losses": rounded(kept.losses), **kept.hashes}


def _small():
    return encoder(num_layers=1)


def _adamw(**arguments):
    return bert_keras.adamw(1e-3, steps=STEPS, **arguments)


def _lamb():
    return bert_keras.lamb(2e-3, steps=STEPS)


def _classes():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _pretraining(source="data/tokens/train", **rules):
    rules = SamplingRules(32, 5, **rules)
    model = bert_keras.BertPretrainer(
        _small(), examples_per_row=rules.examples_per_row
    )
    batches = pretraining_dataset(source, 8, seed=2, rules=rules)
    return model, pretraining_losses(), batches


def _fixed(model, loss, target, weight=None):
    """The model, its loss, and batches of random rows and such targets."""
    inputs, draw = inputs_of(model, 64), np.random.default_rng(8)
    rows = (inputs, target(draw, inputs["token_ids"].shape))
    if weight is not None:
        rows += (weight(inputs),)
    data = tf.data.Dataset.from_tensor_slices(rows)
    return model, loss, data.repeat().batch(8, drop_remainder=True)


def _classification():
    model = bert_keras.BertClassifier(_small(), labels=["a", "b", "c"])
    return _fixed(
        model, _classes(), lambda draw, shape: draw.integers(0, 3, shape[0])
    )


def _regression():
    model = bert_keras.BertClassifier(_small(), problem="regression")
    return _fixed(
        model,
        keras.losses.MeanSquaredError(),
        lambda draw, shape: draw.uniform(0, 2, shape[0]).astype("float32"),
    )


def _spans():
    def target(draw, shape):
        start = draw.integers(1, 4, shape[0])
        return {"start": start, "end": start + draw.integers(0, 3, shape[0])}

    model = bert_keras.BertSpanPredictor(_small())
    return _fixed(model, span_losses(), target)


def _tags():
    model = bert_keras.BertTagger(_small(), labels=["O", "B-A", "I-A"])
    return _fixed(
        model,
        _classes(),
        lambda draw, shape: draw.integers(0, 3, shape),
        lambda inputs: inputs["padding_mask"].astype("float32"),
    )


def _choices():
    model = bert_keras.BertChooser(_small())
    return _fixed(
        model, _classes(), lambda draw, shape: draw.integers(0, 2, shape[0])
    )


# Without XLA, whose compilation takes longer than these steps, but for one.
_EAGER = {"jit_compile": False}
# Kind -> model, loss and batches; optimizer; settings of `compile`.
TRAINED = {
    "pre-training": (_pretraining, _adamw, _EAGER),
    "classification": (_classification, _adamw, _EAGER),
    "spans": (_spans, _adamw, _EAGER),
    "tags": (_tags, _adamw, _EAGER),
    "choices": (_choices, _adamw, _EAGER),
    "pre-training compiled": (_pretraining, _adamw, {}),
    "pre-training packed": (
        functools.partial(_pretraining, packed=True),
        _lamb,
        _EAGER,
    ),
    "regression": (
        _regression,
        functools.partial(_adamw, layer_decay=0.8, bias_correction=False),
        _EAGER,
    ),
    "accumulated": (
        _classification,
        functools.partial(_adamw, accumulate=2),
        _EAGER,
    ),
}
