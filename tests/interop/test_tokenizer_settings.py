"""Each setting of a Hugging Face tokenizer is obeyed or refused.

tests/golden/tokenizer_cases.py records what transformers makes of them.
"""

import json

import pytest
import tokenizer_cases as cases
from test_huggingface import folder_of

from bert_keras import BertPreprocessor
from bert_keras.interop.tensors import WeightsError

RECORD = json.loads(cases.RECORD.read_text("utf-8"))


def load(folder, change, length=12):
    cases.write_folder(folder, change)
    folder_of(folder, vocab_size=len(cases.PIECES))
    return BertPreprocessor.from_preset(folder, sequence_length=length)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", cases.EQUAL)
def test_ids_are_those_of_transformers(tmp_path, name):
    theirs = RECORD[f"equal: {name}"]
    preprocess = load(tmp_path, cases.EQUAL[name])
    rows = preprocess.tokenizer(cases.TEXTS).to_list()
    assert [[2, *ids, 3] for ids in rows] == theirs["ids"]
    assert (
        preprocess(cases.TEXTS[:2])["token_ids"].numpy().tolist()
        == (theirs["padded"])
    )
    pair = BertPreprocessor(preprocess.tokenizer, len(theirs["pair"][0]))
    pair = pair(([cases.TEXTS[4]], [cases.TEXTS[0]]))
    pair = [
        pair[key][0].numpy().tolist() for key in ("token_ids", "segment_ids")
    ]
    assert pair == theirs["pair"]
    cut = BertPreprocessor(preprocess.tokenizer, 5)(cases.TEXTS[4])
    assert cut["token_ids"].numpy().tolist() == theirs["cut"]


@pytest.mark.parametrize("name", cases.REFUSED)
def test_what_transformers_does_otherwise_is_refused(tmp_path, name):
    *change, word = cases.REFUSED[name]
    with pytest.raises(WeightsError, match=word):
        load(tmp_path, change)
    assert RECORD[f"refused: {name}"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ((cases.CONFIG, "never_heard_of", 1), "never_heard_of"),
        ((cases.TOKENIZER, "never_heard_of", 1), "never_heard_of"),
        ((cases.TOKENIZER, "model", "dropout", 0.1), "dropout"),
        ((cases.MAP, {"never_heard_of": "x"}), "never_heard_of"),
        ((cases.CONFIG, "model_input_names", ["input_ids"]), "token_type_ids"),
    ],
)
def test_what_nobody_knows_is_warned_about(tmp_path, change, word):
    with pytest.warns(UserWarning, match=word):
        load(tmp_path, change)
