"""What `frozen.py` records of scripts and exports, a function a section.

Each runs in an empty folder and returns plain values; `quick` asks for the
part of them that the suite has time for.
"""

import json
import os
import pathlib
import re

import frozen_cases as cases
import frozen_library as library
import keras
import numpy as np
from frozen_forks import (
    attempt,
    digest,
    exact,
    file_hashes,
    forked,
    placeless,
    plain,
    rounded,
    run,
    short,
)
from frozen_library import command, encoder, filled, model_folder, preprocessor
from glue_samples import write_glue
from task_samples import sentences, write_csv

import bert_keras

PRETRAIN = (
    "--data=data --steps=20 --sequence_length=32 --batch_size=4 "
    "--evaluation_steps=2 --learning_rate=1e-2 "
)
MASKED = "--max_predictions=5 "
SIZES = "--num_layers=1 --hidden_dim=16 --num_heads=2 "
# Run -> more flags of pretrain.
PRETRAINED = {
    "usual": MASKED + SIZES + "--phase_2_steps=4 --evaluations=20 "
    "--phase_2_sequence_length=48 --phase_2_max_predictions=7 "
    "--phase_2_batch_size=2",
    "records": MASKED + SIZES + "--records --optimizer=lamb --evaluations=4",
    "packed": MASKED
    + SIZES
    + "--packed --whole_word --phase_2_steps=0 --evaluations=4",
    "masked-alone": MASKED
    + "--objectives=mlm --phase_2_steps=0 --evaluations=4 "
    "--init=model",
    "left-to-right": SIZES + "--objectives=left_to_right --phase_2_steps=0 "
    "--evaluations=4 --accumulation=2",
}
TIMED = ("_per_second", "seconds", "minutes", "time")


def runs(quick):
    """Curves, figures and files of pre-training runs by the script."""
    library.write_books()
    forked(model_folder, "model")
    run(
        command(
            "create_pretraining_data",
            "--input=books --vocabulary=vocab.txt --output=data --workers=1 "
            "--held_out_share=0.2 --sequence_length=32 --max_predictions=5",
        )
    )
    found = {}
    for name, flags in PRETRAINED.items():
        run(command("pretrain", f"{PRETRAIN} {flags} --output={name}"))
        found[name] = {**_run_folder(name), "files": _files(name)}
    return found


def _run_folder(folder):
    """What a run leaves: its figures, curve and weights."""
    results = json.loads(pathlib.Path(folder, "results.json").read_text())
    results.pop("notes", None)  # sentences
    model = file_hashes(pathlib.Path(folder, "model"))
    curve = results.pop("curve", [])
    return {
        "results": {k: _rounded(v) for k, v in _untimed(results).items()},
        "curve": {
            name: rounded(line[name] for line in curve)
            for name in ("loss", "gradient_norm", "learning_rate")
        },
        "weights": exact(model.pop("model.safetensors", "")),
        "model": model,
    }


def _files(folder):
    """The names of what is in a folder, logs left out."""
    return " ".join(n for n in file_hashes(folder) if "events.out" not in n)


def _untimed(values):
    return {k: v for k, v in values.items() if not k.endswith(TIMED)}


def _rounded(value):
    if isinstance(value, float):
        return rounded([value])[0]
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in _untimed(value).items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return value


def tasks(quick):
    """Scores and files of each family of tasks by the scripts."""
    forked(model_folder, "model")
    _write_tasks()
    found = {}
    names = QUICK_TASKS if quick else TASKS
    for name in names:
        flags = TASKS[name]
        run(
            command(
                "finetune",
                f"{flags} --init=model --output=run-{name} --epochs=2 "
                "--batch_size=8 --learning_rate=1e-2 --sequence_length=24",
            )
        )
        found[name] = {
            **_run_folder(f"run-{name}"),
            **_predictions(f"run-{name}/predictions"),
        }
        if name in SCORED and not quick:
            found[name] |= _scored(name, flags)
    return found


def _predictions(folder):
    """File -> its hash, or its numbers where it has any that are floats."""
    return {
        f"predictions/{name}": exact(value)
        for name, value in file_hashes(folder).items()
    }


def _scored(name, flags):
    """What evaluate and predict make of a run."""
    flags = " ".join(f for f in flags.split() if "train=" not in f)
    output = f"{name}-scored"
    run(command("evaluate", f"{flags} --model=run-{name} --output={output}"))
    results = json.loads(pathlib.Path(output, "results.json").read_text())
    if name in SQUAD_DEV:  # their test sets are not public
        flags += f" --test={SQUAD_DEV[name]}"
    run(command("predict", f"{flags} --model=run-{name} --output={name}-test"))
    return {
        "evaluate": {k: _rounded(v) for k, v in results.items()},
        "predict": _files(f"{name}-test"),
    }


def glue(quick):
    """Scores and files of all of GLUE; vectors of features."""
    forked(model_folder, "model")
    _write_tasks()
    return {"run": _all_of_glue(), "features": _features()}


def _all_of_glue():
    run(
        command(
            "finetune",
            "--task=glue --data_dir=glue --init=model --output=glue-run "
            "--epochs=1 --batch_size=8 --sequence_length=16",
        )
    )
    results = json.loads(pathlib.Path("glue-run/results.json").read_text())
    return {
        "results": _without_curves(results),
        "files": digest(_files("glue-run")),
    }


def _without_curves(value):
    if not isinstance(value, dict):
        return _rounded(value)
    return {
        k: _without_curves(v)
        for k, v in _untimed(value).items()
        if k not in ("curve", "notes")
    }


def _features():
    lines = [text for text, _ in sentences(6)]
    pathlib.Path("texts.txt").write_text("\n".join(lines) + "\n")
    found = {}
    for recipe, per in (("last", "token"), ("concat:-1,0", "word_first")):
        run(
            command(
                "extract_features",
                f"--input=texts.txt --model=model --recipe={recipe} "
                f"--per={per} --output={per}.npz --sequence_length=64",
            )
        )
        with np.load(f"{per}.npz") as arrays:
            found[recipe] = {name: plain(arrays[name]) for name in arrays}
    return found


SPLITS = ("train", "dev", "test")
FILES = " ".join(f"--{split}=custom/{{0}}-{split}.csv" for split in SPLITS)
# Task -> its flags.
TASKS = {
    **{
        f"custom-{name}": f"--task=custom {FILES.format(name)} {flags}"
        for name, flags in cases.CUSTOM.items()
    },
    "squad1": "--task=squad1 --data_dir=squad1",
    "squad2": "--task=squad2 --data_dir=squad2",
    "swag": "--task=swag --data_dir=swag",
    "cosmosqa": "--task=cosmosqa --data_dir=cosmosqa",
    "comve": "--task=comve --data_dir=comve",
    "conll2003": "--task=conll2003 --data_dir=conll2003",
    "wnut17": "--task=wnut17 --data_dir=wnut17",
    "wikiann": "--task=wikiann --data_dir=wikiann --recipe=last --lstm_dim=4",
}
SQUAD_DEV = {
    "squad1": "squad1/dev-v1.1.json",
    "squad2": "squad2/dev-v2.0.json",
}
QUICK_TASKS = ("custom-single", "squad2")
SCORED = (
    "custom-single",
    "custom-spans",
    "squad2",
    "swag",
    "conll2003",
    "wnut17",
)


def _write_tasks():
    """Files of every task in `TASKS`, in its official layout."""
    write_glue(pathlib.Path("glue"))
    os.mkdir("custom")
    for number, split in enumerate(SPLITS):
        rows = sentences(24 if split == "train" else 8, number)
        for name, (header, cells) in _custom(rows).items():
            write_csv(f"custom/{name}-{split}.csv", cells, header)
    for version in (1, 2):
        os.mkdir(f"squad{version}")
        for split in SPLITS[:2]:
            path = pathlib.Path(f"squad{version}/{split}-v{version}.{{}}.json")
            path = str(path).format("1" if version == 1 else "0")
            pathlib.Path(path).write_text(json.dumps(_squad(split, version)))
    _write_choices()
    for folder, names in (
        ("conll2003", ("train.txt", "valid.txt", "test.txt")),
        (
            "wnut17",
            (
                "wnut17train.conll",
                "emerging.dev.conll",
                "emerging.test.annotated",
            ),
        ),
        ("wikiann", SPLITS),
    ):
        os.mkdir(folder)
        for number, name in enumerate(names):
            text = _entities(folder, 16 if not number else 6)
            pathlib.Path(folder, name).write_text(text)


def _custom(rows):
    """Family -> header and cells of a file of toy sentences."""
    words = [(text.split(), y) for text, y in rows]
    tags = [
        " ".join("B-GOOD" if w == "good" else "O" for w in found)
        for found, _ in words
    ]
    return {
        "single": (("text", "label"), [(t, f"is {y}") for t, y in rows]),
        "pair": (
            ("text", "pair", "label"),
            [(t, f"the {t}", y) for t, y in rows],
        ),
        "regression": (
            ("text", "score"),
            [(t, y + len(t) / 50) for t, y in rows],
        ),
        "multi": (
            ("text", "kinds"),
            [
                (t, ",".join(["good"] * y + ["long"] * (len(t) > 25)))
                for t, y in rows
            ],
        ),
        "spans": (
            ("question", "context", "answer"),
            [("what was it", t, t.split()[-1] if y else "") for t, y in rows],
        ),
        "tags": (
            ("words", "tags"),
            [(t, tag) for (t, _), tag in zip(rows, tags, strict=True)],
        ),
        "choices": (
            ("prompt", "one", "two", "label"),
            [("it was", t, f"{t} not", y) for t, y in rows],
        ),
    }


def _squad(split, version):
    paragraphs = []
    for number, (name, place) in enumerate(
        [("Ada Lovelace", "Bern"), ("Ben", "London, then"), ("Cleo", "a hut")]
        * (4 if split == "train" else 2)
    ):
        context = f"{name} (18{number:02}) lived in {place} and sang very well."
        start = context.index(place)
        answers = [{"text": place, "answer_start": start}]
        asked = {"question": f"Where lived {name}?", "answers": answers}
        rows = [{"id": f"{split}-{number}", **asked}]
        if version == 2:
            rows[0]["is_impossible"] = False
            rows.append(
                {
                    "id": f"{split}-{number}-none",
                    "question": "Who sailed?",
                    "answers": [],
                    "is_impossible": True,
                }
            )
        paragraphs.append({"context": context, "qas": rows})
    data = [{"title": "lives", "paragraphs": paragraphs}]
    return {"version": f"v{version}", "data": data}


def _write_choices():
    four = [f"ending{i}" for i in range(4)]
    layouts = {
        "swag": (("sent1", "sent2", *four, "label"), "train val test"),
        "cosmosqa": (
            ("context", "question", *(f"answer{i}" for i in range(4)), "label"),
            "train valid test",
        ),
    }
    for folder, (header, names) in layouts.items():
        os.mkdir(folder)
        for number, name in enumerate(names.split()):
            rows = [
                (
                    t,
                    "it was",
                    *(f"{w} {t}" for w in ("a", "the", "not", "red")),
                    (y + i) % 4,
                )
                for i, (t, y) in enumerate(sentences(12 - 4 * number, number))
            ]
            write_csv(f"{folder}/{name}.csv", rows, header)
    for number, (folder, middle, gold) in enumerate(
        (
            ("Training  Data", "data_all", "answers_all"),
            ("Dev Data", "dev_data", "gold_answers"),
            ("Test Data", "test_data", "gold_answers"),
        )
    ):
        place = pathlib.Path("comve", folder)
        place.mkdir(parents=True)
        rows = sentences(12 - 4 * number, number)
        write_csv(
            place / f"subtaskB_{middle}.csv",
            [
                (i, t, f"a {t}", "not one", "red cat")
                for i, (t, _) in enumerate(rows)
            ],
            ("id", "FalseSent", "OptionA", "OptionB", "OptionC"),
        )
        first, *others = [
            (i, "ABC"[(i + y) % 3]) for i, (_, y) in enumerate(rows)
        ]
        write_csv(place / f"subtaskB_{gold}.csv", others, first)


def _entities(kind, count):
    """Sentences of words and their labels, in the columns of a task."""
    lines = ["-DOCSTART- -X- -X- O", ""] if kind == "conll2003" else []
    names = [("Ada", "B-PER"), ("Lovelace", "I-PER"), ("Bern", "B-LOC")]
    for number in range(count):
        sentence = [names[0], *names[1 : 1 + number % 2], ("lived", "O")]
        sentence += [("in", "O"), names[2]][: number % 4]
        for word, label in sentence:
            if kind == "conll2003":
                lines.append(f"{word} NN X {label}")
            elif kind == "wikiann":
                lines.append(f"en:{word}\t{label}")
            else:
                lines.append(f"{word}\t{label}")
        lines.append("")
    return "\n".join(lines) + "\n"


TAGS = ["B-FILM", "I-FILM", "O", "B-HOUR", "E-HOUR"]
# Export -> its models, the arguments of the export.
EXPORTS = {
    "all": (
        lambda: [
            _model("BertClassifier", labels=["bad", "fine", "good"]),
            _model("BertSpanPredictor"),
            _model("BertTagger", labels=TAGS),
            _model("BertChooser"),
            _model("BertPretrainer"),
        ],
        {"features": "last", "ids_signature": "transformers"},
    ),
    "pair": (
        lambda: [_model("BertClassifier", labels=["bad", "good"], pair=True)],
        {"portable": True},
    ),
    "multi in windows": (
        lambda: [
            _model("BertClassifier", labels=["a", "b", "c"], problem="multi")
        ],
        {"long_text": "windows", "dtype": "bfloat16"},
    ),
    "score": (
        lambda: [_model("BertClassifier", problem="regression")],
        {"dtype": "int8", "license": "apache-2.0"},
    ),
    "encoder": (
        lambda: [filled(encoder(), 0.5)],
        {"pooling": "max", "normalize": True, "ids_signature": "original"},
    ),
    "none and windows": (
        lambda: [
            _model("BertSpanPredictor", may_be_none=True),
            _model("BertTagger", labels=TAGS),
        ],
        {"top_k": 2, "long_text": "windows"},
    ),
}


def _model(name, **arguments):
    return filled(getattr(bert_keras, name)(encoder(), **arguments), 0.5)


QUESTIONS = {
    "text": [
        *library.TEXTS,
        "Ada Lovelace [MASK] in Bern, very [MASK].",
        "今日",
    ],
    "text_pair": ["good", "An hour", "", "the hut", "not very well", "?"],
    "question": ["Who sailed?", "where", "", "what was it", "Ada", "今"],
    "context": [
        "Ada sailed over the waves.",
        "in the harbour",
        "Nothing.",
        "the goat climbed rocks and slept. " * 6,
        "Lovelace lived in Bern.",
        "今日 was good",
    ],
    "prompt": ["the goat", "an hour"],
    "choices": [["climbed", "sailed over the waves"], ["well spent", "!"]],
}


def serving(quick):
    """Answers of every signature, the card and the files of exports."""
    names = list(EXPORTS)[: 1 if quick else None]
    found = {name: forked(_served, name) for name in names}
    if not quick:
        found["predict"] = _predicted()
        found["as trained"] = _exported()
    return found


def _served(name):
    make, options = EXPORTS[name]
    bert_keras.export_saved_model(make(), preprocessor(16), name, **options)
    served = bert_keras.load_saved_model(name)
    card = served.card["signatures"]
    found = {"files": _files(name)}
    for signature in served.signatures:
        if signature == "tokenize" and name != "all":
            continue
        entry = card[signature]
        kinds = entry["inputs"] | entry["outputs"]
        found[signature] = {
            # Without what the card says of them in words.
            "kinds": {k: kinds[k].split(":")[0] for k in sorted(kinds)},
            "request": digest(entry["request"]),
        }
        asked = entry["request"]
        if set(asked) <= set(QUESTIONS):
            asked = {key: QUESTIONS[key] for key in asked}
        if signature == "choose":
            asked = {key: value[:2] for key, value in asked.items()}
        answer = getattr(served, signature)(**asked)
        found[signature]["answer"] = _answer(answer)
    return found


def _answer(answer):
    """An answer, with rows of unequal length flat."""
    return {
        name: plain(_flat(value) if isinstance(value, list) else value)
        for name, value in sorted(answer.items())
    }


def _flat(value):
    if isinstance(value, list):
        return [one for inner in value for one in _flat(inner)]
    return [value]


def _predicted():
    """The lines that the script writes of the export of pairs."""
    rows = zip(QUESTIONS["text"], QUESTIONS["text_pair"], strict=True)
    write_csv("asked.csv", list(rows), ("text", "text_pair"))
    run(command("predict", "--model=pair --input=asked.csv --output=a.jsonl"))
    lines = pathlib.Path("a.jsonl").read_text().splitlines()
    return [_rounded(json.loads(line)) for line in lines]


def _exported():
    """The files that the script writes, once a fresh process agrees."""
    forked(
        model_folder,
        "model",
        lambda: _model("BertClassifier", labels=["bad", "good"]),
    )
    run(command("export", "--model=model --output=out"))
    return _files("out")


def help(quick):
    """The first line and the hash of what each script says of itself."""
    found = {}
    for name, start in cases.SCRIPTS.items():
        text = run(f"{start} --help").stdout
        found[name] = f"{digest(text)} {text.strip().splitlines()[0]}"
    return found


def errors(quick):
    """What each mistake is told, in scripts and in Python."""
    forked(_write_mistakes)
    found = {} if quick else {"scripts": _script_errors()}
    return {**found, "Python": forked(_python_errors)}


def _script_errors():
    found = {}
    for name, line in cases.MISTAKES.items():
        script, _, flags = line.partition(" ")
        done = attempt(command(script, flags))
        found[name] = f"{done.code}: {short(done.stderr)}"
    return found


def _write_mistakes():
    library.write_books()
    for name in ("model", "cut"):
        model_folder(name, lambda: encoder(max_sequence_length=512))
    weights = pathlib.Path("cut/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    pathlib.Path("empty.txt").write_text("")
    pathlib.Path("latin.txt").write_bytes(b"caf\xe9 au lait\n")
    pieces = pathlib.Path("vocab.txt").read_text(encoding="utf-8")
    pathlib.Path("no_cls.txt").write_text(pieces.replace("[CLS]\n", ""))
    write_csv("rows.csv", sentences(24))


def _python_errors():
    found = {}
    for name, mistake in _mistakes().items():
        try:
            mistake()
            found[name] = "no error"
        except Exception as error:
            found[name] = f"{type(error).__name__}{_own_message(error)}"
    return found


def _own_message(error):
    """What an error of this package says, without what Keras adds."""
    if not isinstance(error, bert_keras.InputError | AttributeError):
        return ""
    text = re.sub(r"\s*Arguments received by .*", "", str(error), flags=re.S)
    text = re.sub(r"\x1b\[[01]m", "", text)
    return f": {short(placeless(text))}"


def _mistakes():
    """Name -> a function that makes a mistake."""
    b, pieces = bert_keras, cases.PIECES
    text, body = preprocessor(), encoder()
    classifier = b.BertClassifier(body, labels=["no", "yes"])
    export = b.export_saved_model
    export(classifier, text, "served")
    served = b.load_saved_model("served")
    rules = library.SamplingRules
    return {
        "name": lambda: b.BertClasifier,
        "no [UNK]": lambda: b.WordPieceTokenizer(["[PAD]", "a"]),
        "piece twice": lambda: b.WordPieceTokenizer([*pieces, "the"]),
        "length of words": lambda: b.WordPieceTokenizer(
            pieces, max_word_length=0
        ),
        "piece": lambda: text.tokenizer.token_to_id("zebra"),
        "id": lambda: text.tokenizer.id_to_token(-1),
        "unit": lambda: text.tokenizer.tokenize_with_offsets(["a"], "words"),
        "numbers as texts": lambda: text([1, 2]),
        "row too short": lambda: b.BertPreprocessor(text.tokenizer, 1),
        "segments": lambda: text((["a"], ["b", "c"])),
        "rates": lambda: b.TokenMasker(pieces, 4, mask_token_rate=1.5),
        "places": lambda: b.TokenMasker(pieces, 0),
        "heads": lambda: encoder(num_heads=3),
        "layers": lambda: encoder(num_layers=0),
        "activation": lambda: encoder(activation="swish"),
        "attention": lambda: encoder(attention="sideways"),
        "dropout": lambda: encoder(dropout=1.5),
        "id beyond the vocabulary": lambda: body(np.array([[2, 9999]])),
        "row too long": lambda: body(np.zeros((1, 65), "int32")),
        "no such input": lambda: classifier({"ids": np.zeros((1, 4))}),
        "labels twice": lambda: b.BertClassifier(body, labels=["a", "a"]),
        "problem": lambda: b.BertClassifier(body, problem="double"),
        "no labels": lambda: b.BertTagger(body, labels=[]),
        "causal without a direction": lambda: b.BertCausalModel(body),
        "no such weights": lambda: b.BertEncoder.from_preset("nowhere"),
        "not weights": lambda: b.BertEncoder.from_preset("books"),
        "cut weights": lambda: b.BertEncoder.from_preset("cut"),
        "row longer than the model's": lambda: b.BertPreprocessor.from_preset(
            "model", sequence_length=513
        ),
        "other labels": lambda: b.BertClassifier.from_preset(
            "model", labels=["a"]
        ),
        "saved over other files": lambda: body.save_preset("books", text),
        "steps": lambda: b.adamw(1e-3, steps=0),
        "rate": lambda: b.lamb(-1.0, steps=10),
        "warm-up": lambda: b.adamw(1e-3, steps=10, warmup=11),
        "one text": lambda: b.learn_vocabulary("the goat", 100),
        "no texts": lambda: b.learn_vocabulary([], 100),
        "export of a layer": lambda: export(keras.layers.Dense(1), text, "o"),
        "export without text": lambda: export(body, None, "o"),
        "answers": lambda: export(body, text, "o", top_k=3),
        "twice the same answer": lambda: export([body, body], text, "o"),
        "pooling": lambda: export(body, text, "o", pooling="sum"),
        "another export there": lambda: export(body, text, "served"),
        "not an export": lambda: b.load_saved_model("model"),
        "no such signature": lambda: served.embed(["a"]),
        "one string": lambda: served.classify("a"),
        "two lists": lambda: served.classify(["a"], ["b"]),
        "length of rows of data": lambda: rules(7),
        "mix of masks": lambda: rules(32, 5, mask_mix=(80, 10, 5)),
        "no data": lambda: library.pretraining_dataset("books", 4, 0),
    }


SECTIONS = {
    "tokens": library.tokens,
    "data": library.data,
    "models": library.models,
    "weights": library.weights,
    "conversions": library.conversions,
    "training": library.training,
    "runs": runs,
    "tasks": tasks,
    "glue": glue,
    "serving": serving,
    "errors": errors,
    "help": help,
}
# What the suite has no time for.
SLOW = ("conversions", "runs", "glue", "help")
