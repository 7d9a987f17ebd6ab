import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from bert_keras import (
    BertEncoder,
    BertPreprocessor,
    InputError,
    WordPieceTokenizer,
)
from official_tasks.engine.features import Extractor, write_features
from official_tasks.tasks.recipes import RECIPES, find_recipe

WORDS = "ada love ##lace lived in bern london . and".split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
TEXTS = [
    ["Ada", "Lovelace", "lived"],
    ["\u200b", "in"],
    [],
    ["Lovelace", "and", "Bern"] * 4,
]


@functools.cache
def encoder():
    made = BertEncoder(
        len(PIECES), 5, 2, 8, 16, max_sequence_length=128, name="encoder"
    )
    random = np.random.default_rng(0)
    for weight in made.weights:
        weight.assign(random.normal(0.1, 0.3, weight.shape))
    return made


@functools.cache  # tracing a tokenizer takes seconds
def tokenizer():
    return WordPieceTokenizer(PIECES)


def preprocessor(length=32):
    return BertPreprocessor(tokenizer(), length, pad_to_longest=True)


def states(words):
    """Hidden states of one text, without [CLS] and [SEP]: (6, T, 8)."""
    rows = preprocessor()(tf.constant([" ".join(words)]))
    found = encoder()(rows, hidden_states=True)["hidden_states"]
    return np.stack([state[0, 1:-1] for state in found])


@functools.cache  # so is tracing an encoder
def extractor(recipe, length=32, **arguments):
    return Extractor(
        encoder(), preprocessor(length), find_recipe(recipe), **arguments
    )


def extracted(recipe, texts=TEXTS, **arguments):
    extract = extractor(recipe, **arguments)
    found = list(extract(texts))
    assert extract.count(texts) == (
        sum(len(f.vectors) for f in found),
        sum(len(f.words) for f in found),
    )
    assert all(f.vectors.shape[1] == extract.width for f in found)
    return found


def test_each_recipe_reads_the_layers_that_its_name_says():
    layers = states(TEXTS[0])
    expected = {
        "embeddings": layers[0],
        "second_to_last": layers[4],
        "last": layers[5],
        "weighted_sum_last_four": layers[2:].sum(axis=0),
        "concat_last_four": np.concatenate(layers[2:], axis=-1),
        "weighted_sum_all": layers[1:].sum(axis=0),
        "concat:0,-5": np.concatenate(layers[[0, 1]], axis=-1),
    }
    assert expected.keys() > RECIPES.keys()
    for name, values in expected.items():
        vectors = find_recipe(name).vectors(list(layers))
        np.testing.assert_allclose(vectors, values, atol=1e-5)
    (first,) = extracted("concat_last_four", TEXTS[:1])
    np.testing.assert_allclose(
        first.vectors, expected["concat_last_four"], atol=1e-5
    )


def test_recipes_equal_the_features_of_the_exported_model():
    from bert_keras.serving.embedding import RECIPES as SERVED

    layers = list(states(TEXTS[0]))
    for ours, served in zip(RECIPES.values(), SERVED.values(), strict=True):
        np.testing.assert_allclose(
            ours.vectors(layers), served(layers), atol=1e-6
        )


def test_tokens_are_told_with_the_word_they_belong_to():
    first, second, third, _ = extracted("last")
    assert [
        PIECES[i] for i in first.token_ids
    ] == "ada love ##lace lived".split()
    assert first.words.tolist() == [0, 1, 1, 2]
    assert [PIECES[i] for i in second.token_ids] == ["[UNK]", "in"]
    assert third.vectors.shape == (0, 8)


def test_a_words_vector_is_its_first_tokens_or_the_mean():
    tokens = extracted("last")
    firsts = extracted("last", per="word_first")
    means = extracted("last", per="word_mean")
    for token, first, mean, words in zip(
        tokens, firsts, means, TEXTS, strict=True
    ):
        assert len(first.vectors) == len(mean.vectors) == len(words)
        for word in range(len(words)):
            own = token.vectors[token.words == word]
            np.testing.assert_allclose(first.vectors[word], own[0], atol=1e-6)
            np.testing.assert_allclose(
                mean.vectors[word], own.mean(axis=0), atol=1e-6
            )


def test_a_text_longer_than_a_row_loses_no_token():
    long, short = extracted("embeddings", length=8), extracted("embeddings")
    assert [len(f.vectors) for f in long] == [len(f.vectors) for f in short]
    # The embeddings of the first window do not depend on the others.
    np.testing.assert_allclose(
        long[3].vectors[:4], short[3].vectors[:4], atol=1e-6
    )
    assert np.isfinite(long[3].vectors).all()
    assert np.abs(long[3].vectors).max(axis=1).min() > 0


def test_features_on_disk_are_those_that_were_extracted(tmp_path):
    found = extracted("last", dtype="float16")
    vectors = np.concatenate([f.vectors for f in found])
    counts = (len(TEXTS), sum(len(f.words) for f in found))
    path = tmp_path / "features.npz"
    write_features(path, found, vectors.shape, "float16", *counts)
    with np.load(path) as read:
        assert read["features"].dtype == np.float16
        np.testing.assert_array_equal(read["features"], vectors)
        splits = read["row_splits"]
        own = read["features"][splits[3] : splits[4]]
        np.testing.assert_array_equal(own, found[3].vectors)
        tokens = slice(*read["token_splits"][:2])
        assert read["words"][tokens].tolist() == [0, 1, 1, 2]
        np.testing.assert_array_equal(
            read["token_ids"][tokens], found[0].token_ids
        )
    assert path.stat().st_size < vectors.nbytes + 3000
    path = tmp_path / "features.tfrecord"
    write_features(path, found, vectors.shape, "float16", *counts)
    rows = [
        tf.train.Example.FromString(row.numpy()).features.feature
        for row in tf.data.TFRecordDataset(str(path))
    ]
    assert len(rows) == len(TEXTS)
    shape = rows[3]["shape"].int64_list.value
    raw = np.frombuffer(rows[3]["features"].bytes_list.value[0], "float16")
    np.testing.assert_array_equal(raw.reshape(shape), found[3].vectors)
    assert rows[0]["words"].int64_list.value == [0, 1, 1, 2]


def test_what_cannot_be_extracted_or_written_is_told(tmp_path):
    with pytest.raises(InputError, match="no recipe 'first': expected one of"):
        find_recipe("first")
    with pytest.raises(InputError, match="no recipe 'concat:x'"):
        find_recipe("concat:x")
    with pytest.raises(InputError, match="reads layer -9, but .* 5 layers"):
        extracted("concat:-9")
    with pytest.raises(InputError, match="per is 'sentence'"):
        extracted("last", per="sentence")
    with pytest.raises(InputError, match=r"ends in \.npz or \.tfrecord"):
        write_features(tmp_path / "x.json", [], (0, 1), "float16", 0, 0)
    path = tmp_path / "x.npz"
    with pytest.raises(InputError, match="changed while they were read"):
        write_features(path, extracted("last"), (9, 8), "float32", 4, 9)
    assert not path.exists()


def save_encoder(folder):
    encoder().save_preset(folder, preprocessor())
    return str(folder)


def test_the_script_writes_the_features_of_a_text_a_line(tmp_path):
    from run_script import ROOT, run_script

    (tmp_path / "texts.txt").write_text("Ada Lovelace lived\n\nin Bern\n")
    done = run_script(
        ROOT / "tools/extract_features.py",
        "--input=texts.txt",
        f"--model={save_encoder(tmp_path / 'model')}",
        "--output=out.npz",
        "--recipe=concat_last_four",
        "--dtype=float16",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "6 vectors of 32 numbers, of 3 texts" in done.stdout
    with np.load(tmp_path / "out.npz") as read:
        assert read["row_splits"].tolist() == [0, 4, 4, 6]


def test_the_scripts_texts_are_lines_or_columns(tmp_path):
    from tools.extract_features import texts_of

    columns = tmp_path / "words.conll"
    columns.write_text("Ada B-PER\nLovelace I-PER\n\nBern B-LOC\n")
    assert list(texts_of(columns, True)) == [["Ada", "Lovelace"], ["Bern"]]
    with pytest.raises(InputError, match="no such file"):
        list(texts_of(tmp_path / "absent", False))
    columns.write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match="the byte 0xe9"):
        list(texts_of(columns, False))


def ner_file(path):
    sentences = [
        "Ada B-PER\nlived O\nin O\nBern B-LOC\n",
        "and O\nLondon B-LOC\n",
    ]
    path.write_text("\n".join(sentences * 6))
    return str(path)


def test_the_tagger_learns_on_features_and_the_encoder_does_not(tmp_path):
    from official_tasks.engine import finetuning
    from official_tasks.evaluate import evaluate
    from official_tasks.tasks.tagging import NerTask

    model = save_encoder(tmp_path / "model")
    data = ner_file(tmp_path / "train.conll")
    task = NerTask(
        train=data, dev=data, recipe="weighted_sum_last_four", lstm_dim=8
    )
    assert task.defaults.learning_rate == 1e-3
    output = tmp_path / "run"
    results = finetuning.run(
        task, model, output, epochs=12, batch_size=4, learning_rate=0.03
    )
    assert results["f1"] > 0.5
    assert set(results["classes"]) == {"LOC", "PER"}
    trained = BertEncoder.from_preset(str(output / "model"))
    for before, after in zip(encoder().weights, trained.weights, strict=True):
        np.testing.assert_array_equal(before, after)
    # And the model that was kept says the same when it is loaded.
    fresh = NerTask(dev=data)  # the model tells its layers and its width
    assert evaluate(fresh, [str(output)])["f1"] == results["f1"]
    # Layers of as many numbers would load, and give wrong answers.
    for other, told in (
        ({"recipe": "weighted_sum_all"}, "recipe weighted_sum_last_four; .*"),
        ({"lstm_dim": 4}, "lstm_dim 8; the task ner has 4"),
    ):
        with pytest.raises(InputError, match=f"has the {told}"):
            evaluate(NerTask(dev=data, **other), [str(output)])


def test_the_table_gathers_rows_and_is_drawn(tmp_path, monkeypatch):
    from official_tasks.engine import grid
    from official_tasks.paper import feature_table

    tokens = {"seed-0": 0.6, "seed-1": 0.5, "seed-2": 0.0}
    runs = {name: {"token_f1": value} for name, value in tokens.items()}

    def run(task, init, output, **arguments):
        best = {"f1": 0.5, "token_f1": 0.6, "runs": runs}
        if output.endswith("/embeddings"):  # of one seed
            return {"f1": 0.5, "token_f1": 0.6}
        if output.endswith("/last"):
            failed = {"mean": None, "deviation": None, "failed": list(runs)}
            return {**best, **failed}
        return {**best, "mean": 0.4, "deviation": 0.1, "failed": ["seed-2"]}

    monkeypatch.setattr(grid, "run", run)
    asked = []
    table = feature_table.fill(
        lambda recipe: (asked.append(recipe), {}), "init", str(tmp_path)
    )
    assert asked == [*RECIPES, None]
    assert table["fine_tuning"]["f1"] == 0.4
    assert table["fine_tuning"]["token_f1"] == pytest.approx(0.55)
    assert table["embeddings"]["token_f1"] == 0.6
    # A row whose seeds failed has neither mean nor deviation.
    assert table["last"] == dict.fromkeys(("f1", "deviation", "token_f1"))
    shown = grid.table_of("toy", dict(sorted(table.items())))
    names = [column.header for column in shown.columns]
    assert names == ["", "f1", "deviation", "token f1"]
    assert list(shown.columns[names.index("f1")].cells)[3] == ""
    pytest.importorskip("matplotlib")
    feature_table.draw(table, "toy", tmp_path / "table.png")
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(json.dumps(table))


def test_the_weights_of_a_sum_are_learned_and_equal_at_first():
    from official_tasks.tasks.feature_tagger import LayerMix

    layers = [np.float32(state[None]) for state in states(TEXTS[0])]
    mix = LayerMix("weighted_sum_last_four", 5)
    np.testing.assert_allclose(
        mix(layers), np.mean(layers[2:], axis=0), rtol=1e-5
    )
    shares = np.array([0.1, 0.2, 0.3, 0.4], "float32")
    mix.mix.assign(np.log(shares))
    mix.scale.assign(2.0)
    expected = 2 * np.tensordot(shares, np.stack(layers[2:]), 1)
    np.testing.assert_allclose(mix(layers), expected, rtol=1e-5)
    copy = LayerMix.from_config(mix.get_config())
    copy(layers)
    copy.set_weights(mix.get_weights())
    np.testing.assert_array_equal(copy(layers), mix(layers))
    both = LayerMix("concat:0,-1", 5)
    expected = np.concatenate([layers[0], layers[5]], axis=-1)
    np.testing.assert_array_equal(both(layers), expected)
    assert not both.weights
    half = LayerMix("weighted_sum_all", 5, dtype="mixed_bfloat16")
    assert half(layers).dtype == "bfloat16"


def test_padding_changes_nothing_to_the_tagger_and_only_its_head_learns():
    from official_tasks.tasks.feature_tagger import FeatureTagger

    body = BertEncoder.from_config(encoder().get_config())
    tagger = FeatureTagger(body, ["O", "PER"], "weighted_sum_all", lstm_dim=4)
    assert not body.trainable_weights
    names = {weight.path.split("/")[0] for weight in tagger.trainable_weights}
    assert names == {"features", "bilstm_0", "bilstm_1", "tagger"}
    short = {"token_ids": np.array([[2, 5, 6, 3]])}
    long = {
        "token_ids": np.array([[2, 5, 6, 3, 0, 0]]),
        "padding_mask": np.array([[1, 1, 1, 1, 0, 0]]),
    }
    np.testing.assert_allclose(tagger(long)[:, :4], tagger(short), atol=1e-5)
    # Keras would weigh the loss by a mask that came along.
    assert getattr(tagger(long), "_keras_mask", None) is None
