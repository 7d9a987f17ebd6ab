"""Each setting of a Hugging Face tokenizer is applied or refused.

tests/golden/tokenizer_cases.py records the ids from transformers.
"""

import json

import pytest
import tokenizers

from bert_keras import BertPreprocessor, InputError
from bert_keras.interop.huggingface_tokenizer import read_folder
from bert_keras.interop.tensors import WeightsError
from tests.golden import tokenizer_cases as cases
from tests.support.huggingface_folders import folder_of

RECORD = json.loads(cases.RECORD.read_text("utf-8"))


def load(folder, change, length=12):
    cases.write_folder(folder, change)
    folder_of(folder, vocab_size=len(cases.PIECES))
    return BertPreprocessor.from_preset(folder, sequence_length=length)


MADE = {}  # (configuration as JSON, pair length) -> ids


def without_names(config):
    """Return the configuration without the names of layers, which vary."""
    if not isinstance(config, dict):
        return config
    kept = {key: x for key, x in config.items() if key != "name"}
    return {key: without_names(x) for key, x in kept.items()}


def make(preprocess, pair_length):
    """Return the ids of a preprocessor, traced once for each configuration."""
    key = json.dumps(without_names(preprocess.get_config())), pair_length
    if key not in MADE:
        tokenizer, texts = preprocess.tokenizer, cases.TEXTS
        pair = ([texts[4]], [texts[0]])
        pair = BertPreprocessor(tokenizer, pair_length)(pair)
        pair = pair["token_ids"][0], pair["segment_ids"][0]
        cut = BertPreprocessor(tokenizer, 5)(texts[4])["token_ids"]
        MADE[key] = {
            "ids": [[2, *ids, 3] for ids in tokenizer(texts).to_list()],
            "padded": preprocess(texts[:2])["token_ids"].numpy().tolist(),
            "pair": [row.numpy().tolist() for row in pair],
            "cut": cut.numpy().tolist(),
        }
    return MADE[key]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", cases.EQUAL)
def test_ids_are_those_of_transformers(tmp_path, name):
    theirs = RECORD[f"equal: {name}"]
    preprocess = load(tmp_path, cases.EQUAL[name])
    assert make(preprocess, len(theirs["pair"][0])) == theirs


# Refused settings that do not change the ids of transformers in this record.
SAME_IDS = {"cls", "sep", "unk", "mask", "map of cls", "other id", "code"}


@pytest.mark.parametrize("name", cases.REFUSED)
def test_what_transformers_does_otherwise_is_refused(tmp_path, name):
    *change, word = cases.REFUSED[name]
    with pytest.raises(WeightsError, match=word):
        load(tmp_path, change)
    is_same = RECORD[f"refused: {name}"] == RECORD["equal: plain"]
    assert is_same == (name in SAME_IDS)


def test_blank_and_repeated_lines_of_a_vocabulary_keep_their_ids(tmp_path):
    lines = [*cases.PIECES[:5], "", *cases.PIECES[5:], "a", "##b"]
    text, path = "\n".join(lines) + "\n", tmp_path / "vocab.txt"
    path.write_text(text, encoding="utf-8")
    ids = tokenizers.models.WordPiece.read_file(str(path))
    assert (ids[""], ids["a"], ids["##b"]) == (
        5,
        len(lines) - 2,
        len(lines) - 1,
    )

    def load_ids(**more):
        cases.write_folder(
            tmp_path, (cases.TOKENIZER, "model", "vocab", {**ids, **more})
        )
        path.write_text(text, encoding="utf-8")
        folder_of(tmp_path, vocab_size=len(lines))
        return BertPreprocessor.from_preset(tmp_path).tokenizer(cases.TEXTS)

    found = load_ids().to_list()
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / cases.TOKENIZER))
    for case, row in zip(cases.TEXTS, found, strict=True):
        assert row == theirs.encode(case, add_special_tokens=False).ids
    assert len(lines) - 2 in found[0]
    wrong = {"c": 5}, {"x": 6}, {"x": len(lines)}, {"": 7}, {"": len(lines)}
    for other in wrong:
        with pytest.raises(WeightsError, match="1 of .* ids differ from voc"):
            load_ids(**other)


def test_lines_that_differ_by_a_blank_keep_their_ids(tmp_path):
    lines = [*cases.PIECES, "##\u3000", "##", "w\u00a0", "w"]
    ids = {piece: index for index, piece in enumerate(lines)}
    cases.write_folder(tmp_path, (cases.TOKENIZER, "model", "vocab", ids))
    text = "\n".join(lines) + "\n"
    (tmp_path / "vocab.txt").write_text(text, encoding="utf-8")
    folder_of(tmp_path, vocab_size=len(lines))
    preprocess = BertPreprocessor.from_preset(tmp_path)
    assert preprocess.tokenizer(["w"]).to_list() == [[ids["w"]]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "change",
    [
        (cases.CONFIG, "never_heard_of", 1),
        (cases.TOKENIZER, "never_heard_of", 1),
        (cases.TOKENIZER, "model", "never_heard_of", 0.1),
        (cases.MAP, {"never_heard_of": "x"}),
    ],
)
def test_a_setting_that_changes_no_id_is_ignored(tmp_path, change):
    theirs = RECORD["equal: plain"]
    preprocess = load(tmp_path, change)
    assert make(preprocess, len(theirs["pair"][0])) == theirs


def test_a_tokenizer_without_segments_is_warned_about(tmp_path):
    change = cases.CONFIG, "model_input_names", ["input_ids"]
    with pytest.warns(UserWarning, match="token_type_ids"):
        load(tmp_path, change)


def test_a_lone_tokenizer_states_its_accents_in_its_own_file(tmp_path):
    """Without a model type, transformers loads `TokenizersBackend`."""
    for change, strips in (((), None), (cases.EQUAL["strip_accents"], False)):
        cases.write_folder(tmp_path, change)
        (tmp_path / "config.json").unlink()
        settings = json.loads((tmp_path / cases.CONFIG).read_text())
        del settings["tokenizer_class"]
        (tmp_path / cases.CONFIG).write_text(json.dumps(settings))
        found = read_folder(str(tmp_path)).tokenizer["strip_accents"]
        assert found is strips


@pytest.mark.parametrize("name", [cases.TOKENIZER, cases.CONFIG])
def test_a_lone_tokenizer_behind_a_link_is_refused(tmp_path, name):
    (tmp_path / "a").mkdir()
    cases.write_folder(tmp_path / "a", ())
    (tmp_path / "a" / "config.json").unlink()
    (tmp_path / "a" / name).rename(tmp_path / "outside")
    (tmp_path / "a" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="link out of the folder"):
        read_folder(str(tmp_path / "a"))


def test_a_lone_tokenizer_ignores_the_length_that_stands_for_none(tmp_path):
    """transformers writes int(1e30) if it knows no length."""
    cases.write_folder(tmp_path, ())
    (tmp_path / "config.json").unlink()
    path = tmp_path / cases.CONFIG
    settings = json.loads(path.read_text()) | {"model_max_length": int(1e30)}
    path.write_text(json.dumps(settings))
    assert read_folder(str(tmp_path)).sequence_length is None
