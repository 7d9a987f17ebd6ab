"""This script records the ids of transformers for each tokenizer setting.

    python -m tests.golden.tokenizer_cases

It writes tokenizers.json again. It needs the extra `peers`.
"""

import copy
import json
import os
import tempfile
from pathlib import Path

RECORD = Path(__file__).parent / "tokenizers.json"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, *"abcdeé[]", "##b", "[unused1]", "mask", "##é", "##e", "中"]
TEXTS = [
    "a [MASK] b",
    "a[MASK]b",
    "A [mask] e",
    "a[unused1] a <x>",
    "abbb É aé 中a",
    "zz a][b b\x07b",
]
IDS = {piece: index for index, piece in enumerate(PIECES)}
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
MAP = "special_tokens_map.json"


def special(token, segment):
    return {"SpecialToken": {"id": token, "type_id": segment}}


def sequence(name, segment):
    return {"Sequence": {"id": name, "type_id": segment}}


def template(first="[CLS]", second_segment=1):
    single = [special(first, 0), sequence("A", 0), special("[SEP]", 0)]
    more = sequence("B", second_segment), special("[SEP]", second_segment)
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *more],
        "special_tokens": {
            token: {"id": token, "ids": [IDS[token]], "tokens": [token]}
            for token in {first, "[SEP]"}
        },
    }


PLAIN = {
    TOKENIZER: {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": IDS[token], "content": token, **FLAGS, "special": True}
            for token in SPECIAL
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template(),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": IDS,
        },
    },
    CONFIG: {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **{f"{token.strip('[]').lower()}_token": token for token in SPECIAL},
    },
}
PADDING = {
    "strategy": "BatchLongest",
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "[PAD]",
}
TRUNCATION = {
    "direction": "Right",
    "max_length": 4,
    "strategy": "LongestFirst",
    "stride": 0,
}
MASK = {"content": "[MASK]", **FLAGS, "special": True}
OLD_MASK = {"__type": "AddedToken", "content": "[MASK]", **FLAGS}
# Changes with which our ids must equal those of transformers:
# name -> (*keys of a value in PLAIN, new value), or ({file: content},).
EQUAL = {
    "plain": (),
    "BertProcessing": (
        TOKENIZER,
        "post_processor",
        {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
    ),
    "padding": (TOKENIZER, "padding", PADDING),
    "truncation": (TOKENIZER, "truncation", TRUNCATION),
    "decoder": (TOKENIZER, "decoder", None),
    "word length": (TOKENIZER, "model", "max_input_chars_per_word", 3),
    "strip_accents": (TOKENIZER, "normalizer", "strip_accents", False),
    "accents of the config": (CONFIG, "strip_accents", False),  # not read
    "accents of BERT": (
        {
            CONFIG: {
                **PLAIN[CONFIG],
                "tokenizer_class": "BertTokenizer",
                "strip_accents": False,
            }
        },
    ),
    "accents of a file for BERT": (  # strip_accents is not read
        {
            CONFIG: {**PLAIN[CONFIG], "tokenizer_class": "BertTokenizer"},
            TOKENIZER: {
                **PLAIN[TOKENIZER],
                "normalizer": {
                    **PLAIN[TOKENIZER]["normalizer"],
                    "strip_accents": False,
                },
            },
        },
    ),
    "lstrip": (TOKENIZER, "added_tokens", 4, "lstrip", True),
    "rstrip": (TOKENIZER, "added_tokens", 4, "rstrip", True),
    "bos": (CONFIG, "bos_token", "[CLS]"),
    "class": (CONFIG, "tokenizer_class", "TokenizersBackend"),
    "Bert class": (CONFIG, "tokenizer_class", "BertTokenizer"),
    "truncation_side": (CONFIG, "truncation_side", "right"),
    "extra, special": (CONFIG, "extra_special_tokens", ["[MASK]"]),
    "split": (CONFIG, "split_special_tokens", True),
    "token with flags": (CONFIG, "mask_token", OLD_MASK),
    "decoder of added": (CONFIG, "added_tokens_decoder", {"4": MASK}),
    "map": (MAP, {"mask_token": "[MASK]", "additional_special_tokens": []}),
}
# Refused changes, in the same form and with a word of the error message.
REFUSED = {
    "pad left": (CONFIG, "padding_side", "left", "padding_side"),
    "truncate left": (CONFIG, "truncation_side", "left", "truncation_side"),
    "padding left": (
        *(TOKENIZER, "padding", {**PADDING, "direction": "Left"}),
        "direction",
    ),
    "truncation left": (
        *(TOKENIZER, "truncation", {**TRUNCATION, "direction": "Left"}),
        "direction",
    ),
    "cls": (CONFIG, "cls_token", "[SEP]", "cls_token"),
    "sep": (CONFIG, "sep_token", "[CLS]", "sep_token"),
    "unk": (CONFIG, "unk_token", "[PAD]", "unk_token"),
    "pad": (CONFIG, "pad_token", "[MASK]", "pad_token"),
    "mask": (CONFIG, "mask_token", "mask", "mask_token"),
    "map of cls": (MAP, {"cls_token": "[SEP]"}, "cls_token"),
    "bos": (CONFIG, "bos_token", "[unused1]", "unused1"),
    "another token": (CONFIG, "e_token", "<x>", "<x>"),
    "additional": (CONFIG, "additional_special_tokens", ["<x>"], "<x>"),
    "extra": (CONFIG, "extra_special_tokens", ["[unused1]"], "unused1"),
    "extra, dict": (CONFIG, "extra_special_tokens", {"x": "<x>"}, "<x>"),
    "extra, flags": (
        CONFIG,
        "extra_special_tokens",
        [{**OLD_MASK, "content": "<x>"}],
        "<x>",
    ),
    "map of additional": (
        *(MAP, {"additional_special_tokens": ["[unused1]"]}),
        "unused1",
    ),
    "added": (
        *(TOKENIZER, "added_tokens", 4, "content", "[unused1]"),
        "unused1",
    ),
    "added elsewhere": ("added_tokens.json", {"<x>": 20}, "<x>"),
    "added, decoder": (
        *(CONFIG, "added_tokens_decoder", {"20": {**MASK, "content": "<x>"}}),
        "<x>",
    ),
    "single_word": (
        *(TOKENIZER, "added_tokens", 4, "single_word", True),
        "single_word",
    ),
    "normalized": (
        *(TOKENIZER, "added_tokens", 4, "normalized", True),
        "normalized",
    ),
    "other id": (TOKENIZER, "added_tokens", 4, "id", 3, "id of"),
    "no frame": (TOKENIZER, "post_processor", None, "post_processor"),
    "frame": (TOKENIZER, "post_processor", template("[SEP]"), "post_processor"),
    "segments": (
        *(TOKENIZER, "post_processor", template(second_segment=0)),
        "post_processor",
    ),
    "normalizer": (TOKENIZER, "normalizer", {"type": "NFC"}, "type"),
    "no normalizer": (TOKENIZER, "normalizer", None, "normalizer"),
    "clean_text": (TOKENIZER, "normalizer", "clean_text", False, "clean_text"),
    "ideographs": (
        *(TOKENIZER, "normalizer", "handle_chinese_chars", False),
        "handle_chinese_chars",
    ),
    "pre-tokenizer": (
        *(TOKENIZER, "pre_tokenizer", {"type": "Whitespace"}),
        "type",
    ),
    "no pre-tokenizer": (TOKENIZER, "pre_tokenizer", None, "pre_tokenizer"),
    "model": (
        *(TOKENIZER, "model", "type", "WordLevel"),
        "type",
    ),
    "prefix": (
        *(TOKENIZER, "model", "continuing_subword_prefix", "@@"),
        "continuing_subword_prefix",
    ),
    "unknown": (TOKENIZER, "model", "unk_token", "[PAD]", "unk_token"),
    "ids": (
        *(TOKENIZER, "model", "vocab", {**IDS, "a": 6, "b": 5}),
        "differ from vocab",
    ),
    "fewer ids": (
        *(TOKENIZER, "model", "vocab", {p: IDS[p] for p in PIECES[:-1]}),
        "differ from vocab",
    ),
    "code": (CONFIG, "auto_map", {"AutoTokenizer": ["x.Y", None]}, "auto_map"),
}


def write_folder(folder, change):
    """Write a tokenizer's folder: the files of PLAIN with one change."""
    made = copy.deepcopy(PLAIN)
    if len(change) == 1:
        made |= change[0]
    elif change:
        *path, name, value = change
        at = made
        for step in path:
            at = at[step]
        at[name] = value
    made["config.json"] = {"model_type": "bert"}
    for name, value in made.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(value, file)
    with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"{piece}\n" for piece in PIECES)


def record(change):
    """Return the ids from transformers, or the name of its error."""
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        write_folder(folder, change)
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            pair = tokenizer(TEXTS[4], TEXTS[0], padding=False)
            cut = tokenizer(TEXTS[4], max_length=5, truncation=True)
            padded = tokenizer(TEXTS[:2], max_length=12, padding="max_length")[
                "input_ids"
            ]
            return {
                "ids": tokenizer(TEXTS)["input_ids"],
                "pair": [pair["input_ids"], pair["token_type_ids"]],
                "cut": cut["input_ids"],
                "padded": padded,
            }
        except Exception as error:
            return {"error": type(error).__name__}


if __name__ == "__main__":
    found = {f"equal: {name}": record(c) for name, c in EQUAL.items()}
    found |= {f"refused: {n}": record(c[:-1]) for n, c in REFUSED.items()}
    lines = (f"{json.dumps(n)}: {json.dumps(v)}" for n, v in found.items())
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
