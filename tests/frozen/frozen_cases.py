"""What `frozen.py` runs: texts, commands and mistakes, as plain tables."""

# Name of a script -> how it is started. A script that moves or is renamed
# needs one edit here; the record keeps its old name.
SCRIPTS = {
    **{
        name: f"-m official_tasks.{name}"
        for name in ("evaluate", "finetune", "predict", "pretrain", "reproduce")
    },
    "feature_table": "-m official_tasks.paper.feature_table",
    **{
        name: f"tools/{name}.py"
        for name in (
            "compare",
            "convert_checkpoint",
            "create_pretraining_data",
            "demo",
            "doctor",
            "estimate",
            "export",
            "extend_vocabulary",
            "extract_features",
            "serve",
            "train_vocabulary",
        )
    },
    "benchmark": "tools/benchmark/steps.py",
    "benchmark_data": "tools/benchmark/data.py",
    "benchmark_gpu": "tools/benchmark/gpu.py",
    "benchmark_serving": "tools/benchmark/serving.py",
    "benchmark_tokenizer": "tools/benchmark/tokenizer.py",
    "fuzz_loading": "tests/fuzz/fuzz_loading.py",
    "load_test": "tools/benchmark/load_test.py",
    "prove_tokenizer": "tools/maintenance/prove_tokenizer.py",
    "results_table": "tools/benchmark/results_table.py",
}

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789éäßσςあ今日ไท한한µ"
_LETTERS = list(dict.fromkeys(_LETTERS))
_SIGNS = ".,;:!?-'\"()[]{}/\\&%$#@*+=<>_|~^`¿¡«»…—“”、。€₤😀♥"
_WORDS = (
    "the of and in to un mask Mask able hour well spent an good bad film was "
    "is not very fine awful book ship goat sailed climbed over waves rocks "
    "harbour hut sang slept while ada ben cleo emil cat dog ran red blue one "
    "two three four Ada Lovelace lived Bern café cafe naïve naive straße "
    "strasse ##able ##aff ##ly ##s ##ing ##ed ##fe ##fé"
).split()
PIECES = list(
    dict.fromkeys(
        [
            *SPECIAL,
            "[unused0]",
            "[unused1]",
            *_LETTERS,
            *(f"##{letter}" for letter in _LETTERS),
            *_SIGNS,
            *_WORDS,
        ]
    )
)

HARD = [
    "",
    " ",
    "The unaffable goat sailed.",
    "Ça va? Ünaffable CAFÉ, cafe\u0301 nai\u0308ve",
    "ΣΑΣ ΟΔΥΣΣΕΎΣ σς.Σ Σ",
    "Straße STRASSE ẞ İstanbul ıi",
    "今日はいい天気。ภาษาไทย 한국어 \u1112\u1161\u11ab",
    "[CLS] a [MASK] b[SEP] [mask] [UNK][PAD]",
    "👩\u200d👩\u200d👧🏽\ufe0f I\u2764 1\u20e3 𝔘𝔫 ﬁﬂ ½ ™",
    "tab\tnew\nline\r\u00a0\u2003\u3000end\u200b\ufeff\u00ad.",
    "2,500.00$ e.g. don't--stop... (a/b) {c} <d> `e`",
    "a" * 99 + " " + "b" * 100 + " " + "c" * 101,
    "d" * 199 + " " + "e" * 200 + " " + "f" * 201,
    "nul\x00 bell\x07 \ufffd e\u0301\u0323 o\u0323\u0301",
    "שָׁלוֹם مَرْحَبًا \u202eabc",
]


def corpus():
    """Name of a file -> its text: documents of sentences, always the same."""
    names = ["Ada", "Ben", "Cleo", "Emil"]
    verbs = [("sailed", "waves"), ("climbed", "rocks"), ("slept", "hut")]
    found = {}
    for number in range(40):
        lines = [
            f"{a} and {b} {verb} over the {place} "
            f"{'very well' if (number + i) % 3 else 'in the harbour, at 2.30'}"
            f"{'.!?'[(number * 7 + i) % 3]}"
            for i, (verb, place) in enumerate(verbs * (1 + number % 3))
            for a in names[number % 3 :]
            for b in names[number % 2 :: 2]
        ]
        middle = len(lines) // 2
        found[f"{number:02}.txt"] = (
            " ".join(lines[:middle]) + "\n\n" + " ".join(lines[middle:]) + "\n"
        )
    return found


# Build -> flags of create_pretraining_data.
BUILDS = {
    "usual": "--sequence_length=32 --max_predictions=5",
    "words": "--sequence_length=48 --max_predictions=8 --whole_word "
    "--max_ngram=3 --mask_rate=0.2 --mask_mix=70,20,10 --copies=3 --seed=5 "
    "--short_probability=0.5",
    "packed": "--sequence_length=64 --max_predictions=10 --packed",
    "lines": "--sentences=lines --nolowercase --held_out_share=0 --norecords",
}

# Family -> flags of a task beside where its files are.
CUSTOM = {
    "single": "--problem=single",
    "pair": "--text_pair=pair",
    "regression": "--problem=regression --label=score",
    "multi": "--problem=multi --label=kinds",
    "spans": "--problem=spans",
    "tags": "--problem=tags",
    "choices": "--problem=choices --choices=one,two",
}

# Name -> command line of a mistake, and what is written where it is made.
MISTAKES = {
    "flag unknown": "train_vocabulary --inptu=books --output=v.txt",
    "flag missing": "train_vocabulary --input=books",
    "no such text": "train_vocabulary --input=none.txt --output=v.txt",
    "folder for a file": "train_vocabulary --input=books --output=books",
    "empty text": "train_vocabulary --input=empty.txt --output=v.txt",
    "not UTF-8": "train_vocabulary --input=latin.txt --output=v.txt",
    "vocabulary too small": "train_vocabulary --input=books --output=v.txt "
    "--size=3",
    "no domain words": "extend_vocabulary --input=books --output=v.txt "
    "--vocabulary=none.txt",
    "one document": "create_pretraining_data --input=books/00.txt "
    "--vocabulary=vocab.txt --output=out",
    "vocabulary without [CLS]": "create_pretraining_data --input=books "
    "--vocabulary=no_cls.txt --output=out",
    "row too short": "create_pretraining_data --input=books "
    "--vocabulary=vocab.txt --output=out --sequence_length=7",
    "mix of masks": "create_pretraining_data --input=books "
    "--vocabulary=vocab.txt --output=out --mask_mix=80,10",
    "share held out": "create_pretraining_data --input=books "
    "--vocabulary=vocab.txt --output=out --held_out_share=1.5",
    "no pre-training data": "pretrain --data=books --output=out",
    "steps of phase 2": "pretrain --data=books --output=out --steps=4 "
    "--phase_2_steps=9",
    "size and init": "pretrain --data=books --output=out --size=tiny "
    "--init=model",
    "no such task": "finetune --task=nothing --init=model --output=out",
    "no data": "finetune --task=sst2 --init=model --output=out",
    "no such column": "finetune --train=rows.csv --label=stars --init=model "
    "--output=out",
    "format for a data set": "finetune --train=hf:csv --init=model "
    "--output=out",
    "no training file": "finetune --init=model --output=out",
    "row too long": "finetune --train=rows.csv --init=model --output=out "
    "--sequence_length=513",
    "epochs": "finetune --train=rows.csv --init=model --output=out --epochs=0",
    "negative seed": "finetune --train=rows.csv --init=model --output=out "
    "--seed=-1",
    "no such init": "finetune --train=rows.csv --init=books --output=out",
    "output below a file": "finetune --train=rows.csv --init=model "
    "--output=rows.csv/out",
    "option of another task": "finetune --train=rows.csv --init=model "
    "--output=out --stride=4",
    "no such split": "evaluate --task=custom --dev=rows.csv --model=model "
    "--split=tset",
    "model without a head": "evaluate --task=custom --dev=rows.csv "
    "--model=model",
    "neither model nor predictions": "evaluate --task=custom --dev=rows.csv",
    "not an export": "predict --model=model --input=rows.csv --output=a.jsonl",
    "flags of the other kind": "predict --task=sst2 --model=m --input=in.txt",
    "not a model": "export --model=books --output=out",
    "export of weights alone": "export --model=model --output=out --pair",
    "flags no format hears": "export --model=model --output=out "
    "--format=onnx --pair",
    "not weights": "convert_checkpoint --source=books --output=out",
    "cut weights": "convert_checkpoint --source=cut --output=out",
    "no such layers": "extract_features --input=books/00.txt --model=model "
    "--output=f.npz --recipe=concat:-9",
    "folder for texts": "extract_features --input=books --model=model "
    "--output=f.npz",
    "name of an address": "serve --model=none --name=a/b",
    "nothing to compare": "compare none.jsonl model",
    "doctor without a file": "doctor --vocabulary=none.txt",
}
