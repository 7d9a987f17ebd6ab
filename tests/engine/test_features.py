"""Features of a frozen encoder, and files of features."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from bert_keras import BertEncoder, InputError, file_forms
from bert_keras.modeling.recipes import RECIPES, find_recipe
from bert_keras.run_folder import RunFolder
from official_tasks.engine import features
from official_tasks.engine.features import (
    PER,
    Extractor,
    split_texts,
    write_features,
)
from tests.support.feature_samples import TEXTS, encoder, save_encoder, states
from tests.support.run_script import ROOT, call_script
from tests.support.task_samples import eager_functions
from tests.support.toy_words import PIECES, preprocessor

pytestmark = pytest.mark.heavy


def extracted(recipe, texts=TEXTS, length=32, is_traced=False, **arguments):
    extract = Extractor(
        encoder(), preprocessor(length), find_recipe(recipe), **arguments
    )
    # Tracing an encoder takes seconds.
    with contextlib.nullcontext() if is_traced else eager_functions():
        found = [x for part in split_texts(texts) for x in extract(part)]
    assert all(f.vectors.shape[1] == extract.width for f in found)
    return found


def write(path, texts=TEXTS):
    """Write features of texts by way of two parts; return their shape."""
    extract = Extractor(
        encoder(), preprocessor(32), find_recipe("last"), dtype="float16"
    )
    with eager_functions():
        parts = [
            extract.make_part(texts[:2], 0),
            extract.make_part(texts[2:], 2),
        ]
    return write_features(str(path), lambda: iter(parts), str(path))


def test_each_recipe_reads_the_layers_that_its_name_says():
    layers = states(TEXTS[0])
    expected = {
        "embeddings": layers[0],
        "second_to_last": layers[4],
        "last": layers[5],
        "weighted_sum_last_four": layers[2:].sum(axis=0),
        "concat_last_four": np.concatenate(layers[2:], axis=-1),
        "weighted_sum_all": layers[1:].sum(axis=0),
        "sum_last_four": layers[2:].sum(axis=0),
        "sum_all": layers[1:].sum(axis=0),
        "concat:0,-5": np.concatenate(layers[[0, 1]], axis=-1),
    }
    assert expected.keys() > RECIPES.keys()
    for name, values in expected.items():
        vectors = find_recipe(name).vectors(list(layers))
        np.testing.assert_allclose(vectors, values, atol=1e-5)
    (first,) = extracted("concat_last_four", TEXTS[:1], is_traced=True)
    np.testing.assert_allclose(
        first.vectors, expected["concat_last_four"], atol=1e-5
    )


def test_tokens_come_with_the_word_they_belong_to():
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
    # Embeddings depend on positions. In the first window, a token has the same
    # position as in the text.
    np.testing.assert_allclose(
        long[3].vectors[:4], short[3].vectors[:4], atol=1e-6
    )
    assert np.isfinite(long[3].vectors).all()
    assert np.abs(long[3].vectors).max(axis=1).min() > 0


@pytest.mark.parametrize("per", PER)
def test_texts_without_words_at_the_end_have_no_vectors(monkeypatch, per):
    monkeypatch.setattr(features, "CHUNK", 2)
    found = extracted("last", [*TEXTS, [], []], per=per)
    assert [len(f.vectors) for f in found[4:]] == [0, 0]


def test_features_on_disk_are_those_that_were_extracted(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "CHUNK", 2)  # the parts of `write`
    found = extracted("last", dtype="float16")
    vectors = np.concatenate([f.vectors for f in found])
    path = tmp_path / "features.npz"
    assert write(path) == [*vectors.shape]
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
    assert write(path) == [*vectors.shape]
    rows = [
        tf.train.Example.FromString(row.numpy()).features.feature
        for row in tf.data.TFRecordDataset(str(path))
    ]
    assert len(rows) == len(TEXTS)
    shape = rows[3]["shape"].int64_list.value
    raw = np.frombuffer(rows[3]["features"].bytes_list.value[0], "float16")
    np.testing.assert_array_equal(raw.reshape(shape), found[3].vectors)
    assert rows[0]["words"].int64_list.value == [0, 1, 1, 2]


def test_what_cannot_be_extracted_is_refused():
    with pytest.raises(InputError, match="no recipe 'first': expected one of"):
        find_recipe("first")
    with pytest.raises(InputError, match="no recipe 'concat:x'"):
        find_recipe("concat:x")
    with pytest.raises(InputError, match="reads layer -9, but .* 5 layers"):
        extracted("concat:-9")
    with pytest.raises(InputError, match="`per` is 'sentence'"):
        extracted("last", per="sentence")


@pytest.mark.parametrize(
    ("weight", "row", "value", "dtype", "number"),
    [
        ("token/embeddings", PIECES.index("bern"), 3e38, "float32", 2),
        ("norm/gamma", ..., 1e6, "float16", 1),  # float16 ends at 65,504
    ],
)
def test_features_that_are_not_finite_are_named_with_their_text(
    weight, row, value, dtype, number
):
    broken = BertEncoder.from_config(encoder().get_config())
    broken.set_weights(encoder().get_weights())
    (found,) = (x for x in broken.weights if f"embeddings/{weight}" in x.path)
    values = found.numpy()
    values[row] = value
    found.assign(values)
    extract = Extractor(
        broken, preprocessor(32), find_recipe("embeddings"), dtype=dtype
    )
    with (
        eager_functions(),
        pytest.raises(
            InputError, match=f"Text {number} has .* NaN or infinite in"
        ),
    ):
        extract.make_part([["Ada"], ["in", "Bern"]], 0)


def extract_features(folder, *flags):
    return call_script(
        ROOT / "tools/extract_features.py",
        "--input=texts.txt",
        "--recipe=concat_last_four",
        "--vectors_dtype=float16",
        "--model=model",
        *flags,
        folder=folder,
    )


def test_the_script_writes_the_features_of_a_text_a_line(tmp_path):
    (tmp_path / "texts.txt").write_text("Ada Lovelace lived\n\nin Bern\n")
    save_encoder(tmp_path / "model")
    done = extract_features(tmp_path, "--output=out.npz")
    assert done.returncode == 0, done.stderr
    assert "6 vectors of size 32, for 3 texts" in done.stdout
    with np.load(tmp_path / "out.npz") as read:
        assert read["row_splits"].tolist() == [0, 4, 4, 6]
        assert {x: read[x].dtype.name for x in read} == {
            "features": "float16",
            "row_splits": "int64",
            "token_ids": "int32",
            "words": "int32",
            "token_splits": "int64",
        }


def test_texts_that_change_while_they_are_read_are_refused(
    tmp_path, monkeypatch
):
    texts = tmp_path / "texts.txt"
    texts.write_text("Ada\nin\n")
    save_encoder(tmp_path / "model")
    make = Extractor.make_part

    def make_and_append(extract, rows, before):
        if not before:
            with open(texts, "a") as file:
                file.write("Bern\n")
        return make(extract, rows, before)

    monkeypatch.setattr(features, "CHUNK", 1)
    monkeypatch.setattr(Extractor, "make_part", make_and_append)
    done = extract_features(tmp_path, "--output=out.npz")
    assert done.returncode == 2
    assert "changed while it was read, from 2 texts to 3" in (
        done.stderr.replace("\n", " ")
    )
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize("name", ["out.npz", "out.tfrecord"])
def test_an_interrupted_script_is_continued_and_a_finished_one_repeated(
    tmp_path, name, monkeypatch
):
    def kill(*_):
        raise OSError(5, "killed")

    monkeypatch.setattr(features, "CHUNK", 2)
    texts = tmp_path / "texts.txt"
    texts.write_text("Ada Lovelace\n\nin Bern\nin\nLovelace\n")
    save_encoder(tmp_path / "model")
    assert extract_features(tmp_path, f"--output=a{name}").returncode == 0
    expected = (tmp_path / f"a{name}").read_bytes()
    output = f"--output={name}"
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "finish", kill)
        assert extract_features(tmp_path, output).returncode != 0
    made = sorted((tmp_path / f"{name}.parts").glob("0*"))
    assert len(made) == 3 and not (tmp_path / name).exists()
    made[1].unlink()
    asked, extract = [], Extractor.make_part
    monkeypatch.setattr(
        Extractor,
        "make_part",
        lambda self, rows, before: (
            asked.append(rows) or extract(self, rows, before)
        ),
    )
    for _ in range(2):  # the second call finds a finished output
        done = extract_features(tmp_path, output)
        assert done.returncode == 0, done.stderr
        assert "8 vectors of size 32, for 5 texts" in done.stdout
        assert (tmp_path / name).read_bytes() == expected
        assert asked == [[["in", "Bern"], ["in"]]]
    for flag in ("--recipe=last", "--sequence_length=16", "--per=word_mean"):
        done = extract_features(tmp_path, output, flag)
        assert done.returncode == 2 and " was " in done.stderr
    model = tmp_path / "model" / "model.safetensors"
    before = model.read_bytes()
    model.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    done = extract_features(tmp_path, output)
    assert done.returncode == 2 and "model.safetensors" in done.stderr
    model.write_bytes(before)
    texts.write_text("in\n" * 5)
    done = extract_features(tmp_path, output)
    assert done.returncode == 2 and "other rows" in done.stderr
    assert (tmp_path / name).read_bytes() == expected


def test_the_script_refuses_what_can_be_read_only_once(tmp_path):
    done = call_script(
        ROOT / "tools/extract_features.py",
        *("--input=/dev/null", "--model=none", "--output=out.npz"),
        folder=tmp_path,
    )
    assert "/dev/null is a pipe, a device" in done.stderr


def test_the_scripts_texts_are_lines_or_columns(tmp_path, monkeypatch):
    from tools.extract_features import read_words

    columns = tmp_path / "words.conll"
    columns.write_text("Ada B-PER\nLovelace I-PER\n\nBern B-LOC\n")
    assert list(read_words(columns, True)) == [["Ada", "Lovelace"], ["Bern"]]
    with pytest.raises(InputError, match="no such file"):
        list(read_words(tmp_path / "absent", False))
    monkeypatch.setattr(file_forms, "MAX_LINE_BYTES", 100)
    (tmp_path / "long").write_text("short\n" + "x" * 101)
    with pytest.raises(InputError, match="long, line 2 has more than 100"):
        list(read_words(tmp_path / "long", False))
    columns.write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match="the byte 0xe9"):
        list(read_words(columns, False))
