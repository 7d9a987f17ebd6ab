"""Masked-LM scores of texts, against BERT in NumPy."""

import math

import numpy as np
import pytest

from bert_keras import BertEncoder, BertPretrainer, InputError
from official_tasks.engine.masked_lm import masked_rows, score_masked_lm
from tests.support import model_samples, numpy_bert
from tests.support.run_script import call_script
from tests.support.toy_words import preprocessor

TEXTS = ["he opens the door", "she closes it " * 9, "", "it"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    words = preprocessor()
    size = len(words.tokenizer.vocabulary)
    encoder = BertEncoder(size, 2, 2, 16, 32, 32)
    model = BertPretrainer(encoder)
    model_samples.fill(model)
    folder = tmp_path_factory.mktemp("weights") / "model"
    model.save_preset(folder, words)
    return model, str(folder)


def test_loss_accuracy_and_perplexity_equal_those_of_numpy(weights):
    model, folder = weights
    seed = 1  # not the default
    scores = score_masked_lm(folder, TEXTS, 12, batch_size=3, seed=seed)
    (rows,) = masked_rows(preprocessor(12), TEXTS, seed)
    numbers = model_samples.numpy_weights(model)
    config = model.encoder.get_config()
    losses, hits = [], []
    for row in range(len(rows["token_ids"])):
        length = int(rows["padding_mask"][row].sum())
        real = rows["mask_weights"][row] > 0
        one = {k: v[row, :length] for k, v in rows.items() if "mask_" not in k}
        sequence = numpy_bert.encode_row(numbers, config, one)[-1]
        logits = numpy_bert.mlm_logits(
            numbers, config, [sequence], [rows["mask_positions"][row][real]]
        )[0]
        truth = rows["mask_ids"][row][real]
        shares = numpy_bert.softmax(logits)[np.arange(len(truth)), truth]
        losses += (-np.log(shares)).tolist()
        hits += (logits.argmax(-1) == truth).tolist()
    assert scores["masked"] == len(losses) > 4
    assert scores["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(np.mean(losses)))
    assert scores["accuracy"] == np.mean(hits)


def test_a_loss_that_is_not_finite_is_named_with_its_rows(tmp_path, eagerly):
    words = preprocessor()
    encoder = BertEncoder(len(words.tokenizer.vocabulary), 1, 2, 16, 32, 32)
    model = BertPretrainer(encoder)
    model_samples.fill(model)
    (table,) = (x for x in encoder.weights if "token/" in x.path)
    table.assign(np.full(table.shape, 3e38))  # finite in float32
    model.save_preset(tmp_path / "model", words)
    with pytest.raises(InputError, match="one of the rows 1 to 3 with NaN"):
        score_masked_lm(str(tmp_path / "model"), TEXTS, 12, batch_size=3)


def test_the_masks_do_not_depend_on_batches(weights, eagerly):
    _, folder = weights
    one, all_ = (
        score_masked_lm(folder, TEXTS, 12, batch_size=size) for size in (1, 99)
    )
    assert one == pytest.approx(all_, rel=1e-6)


def test_no_token_is_lost_in_rows(weights):
    (rows,) = masked_rows(preprocessor(12), TEXTS, 0)
    for row in range(len(rows["token_ids"])):
        count = int(rows["mask_weights"][row].sum())
        where = rows["mask_positions"][row][:count]
        rows["token_ids"][row][where] = rows["mask_ids"][row][:count]
    words = preprocessor(12)
    special = {*words.tokenizer(["[CLS] [SEP] [PAD]"]).values.numpy()}
    special |= {words.packer.cls_id, words.packer.sep_id, words.packer.pad_id}
    ids = [i for i in rows["token_ids"].ravel() if i not in special]
    assert ids == words.tokenizer(TEXTS).values.numpy().tolist()


def test_the_script_scores_a_text(weights, tmp_path):
    _, folder = weights
    (tmp_path / "a.txt").write_text("\n".join(TEXTS))
    command = ["-m", "official_tasks.evaluate", "--task=MLM"]
    command += [f"--model={folder}", "--input=*.txt", "--sequence_length=12"]
    done = call_script(*command, "--output=out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "perplexity" in done.stdout
    assert (tmp_path / "out" / "results.json").is_file()


def test_weights_without_a_head_and_no_text_are_refused(weights, tmp_path):
    model, folder = weights
    model.encoder.save_preset(tmp_path / "encoder", preprocessor())
    with pytest.raises(InputError, match="no trained masked-LM head"):
        score_masked_lm(tmp_path / "encoder", TEXTS)
    with pytest.raises(InputError, match="at least one text"):
        score_masked_lm(folder, ["", " "], 12)
