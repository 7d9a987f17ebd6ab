"""Pre-training data: phases of two lengths, baselines, errors."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_keras import InputError
from bert_keras.data import token_store
from bert_keras.data.record_files import read_manifest
from bert_keras.data.sampling import SamplingRules
from bert_keras.json_files import read_json
from bert_keras.manifest import write_manifest
from official_tasks.pretraining import runner
from official_tasks.pretraining.objectives import OBJECTIVES
from official_tasks.pretraining.settings import Settings, phases
from official_tasks.pretraining.source import PretrainingSource
from tests.support.toy_pretraining import PIECES, SMALLEST, write_data


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Folders with records of 16 and of 24 tokens, and packed ones."""
    folder = tmp_path_factory.mktemp("records")
    kinds = {
        "short": SamplingRules(16, 3),
        "long": SamplingRules(24, 4),
        "packed": SamplingRules(16, 3, packed=True),
    }
    return {k: write_data(folder / k, rules=v) for k, v in kinds.items()}


def source(folders, **settings):
    settings = Settings(**{**SMALLEST, "records": True, **settings})
    objective = OBJECTIVES["mlm+nsp"]
    return PretrainingSource(folders["short"], settings, objective)


def test_each_phase_reads_the_records_of_its_length(records):
    both = source(records, phase_2_data=records["long"])
    both.check()
    rules = {"mask_mix": (80.0, 10.0, 10.0), "short_probability": 0.1}
    source(records, phase_2_data=records["long"], **rules).check()
    for phase, name in zip(
        phases(both.settings), ("short", "long"), strict=True
    ):
        folder = records[name]
        count = read_manifest(f"{folder}/train")["examples"]
        assert both.epoch_size(phase) == count
        x, _, _ = next(iter(both.batches(phase, phase.first)))
        assert x["token_ids"].shape == (4, phase.sequence_length)
        x, _, _ = next(iter(both.held_out(phase)))
        assert x["token_ids"].shape == (4, phase.sequence_length)


def test_data_without_records_names_the_flag_that_adds_them(records, tmp_path):
    shutil.copytree(records["short"], tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "train")
    data = {"short": str(tmp_path / "data")}
    with pytest.raises(InputError, match="holds no records. To .* --records"):
        source(data, phase_2_steps=0).check()
    source(data, records=False, phase_2_steps=0).check()


def test_a_second_phase_draws_what_no_first_phase_draws(records):
    def first_batch(seed, number):
        both = source(records, phase_2_data=records["short"], seed=seed)
        phase = phases(both.settings)[number]
        x, _, _ = next(iter(both.batches(phase, phase.first)))
        return x["token_ids"].numpy().tobytes()

    found = [
        first_batch(seed, number) for seed in range(3) for number in (0, 1)
    ]
    assert len({*found}) == 6


@pytest.mark.long
def test_both_phases_are_trained_on_records_in_one_run(records, tmp_path):
    settings = {**SMALLEST, "records": True, "phase_2_data": records["long"]}
    settings |= {"steps": 4, "phase_2_steps": 2, "evaluations": 2}
    results = runner.run(records["short"], tmp_path / "run", **settings)
    tokens = [line["tokens"] for line in results["curve"]]
    assert tokens == [2 * 4 * 16, 2 * 4 * 16 + 2 * 4 * 24]
    assert np.isfinite(results["mlm_perplexity"])
    noted = read_json(tmp_path / "run" / "run.json")["inputs"]
    assert sorted(noted) == sorted(
        f"{folder}/{side}/{name}"
        for folder, name in (
            (f"{records['short']}/tokens", "store.json"),
            (records["short"], "manifest.json"),
            (records["long"], "manifest.json"),
        )
        for side in ("train", "held_out")
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "of one length.*--phase_2_data"),
        ({"phase_2_data": "short"}, "phase 2 has 24"),
        ({"phase_2_data": "long", "max_predictions": 2}, "phase 1 has 2"),
        ({"phase_2_data": "packed"}, "packed True, but phase 2 has False"),
        ({"phase_2_data": "long", "records": False}, "Give --records too"),
        ({"phase_2_data": "long", "whole_word": True}, "whole_word False, but"),
        ({"phase_2_data": "long", "mask_rate": 0.2}, "mask_rate 0.15, but"),
        (
            {"phase_2_data": "long", "mask_mix": (100, 0, 0)},
            r"mask_mix \(80, 10, 10\), but phase 1 has \(100, 0, 0\)",
        ),
        ({"phase_2_data": "nowhere"}, "nowhere holds no records"),
    ],
)
def test_records_that_do_not_fit_are_named(records, settings, message):
    name = settings.get("phase_2_data")
    settings = {**settings, "phase_2_data": records.get(name, name)}
    if name == "packed":
        settings |= {
            "phase_2_sequence_length": 16,
            "phase_2_max_predictions": 3,
        }
    with pytest.raises(InputError, match=message):
        source(records, **settings).check()


def test_baselines_are_those_of_the_simplest_guesses(data):
    settings = Settings(**SMALLEST | {"evaluation_steps": 1000})
    source = PretrainingSource(data, settings, OBJECTIVES["mlm+nsp"])
    (phase, _) = phases(settings)
    ids, labels = [], []
    for _, y, w in source.held_out(phase):
        ids += list(y["mlm"].numpy()[w["mlm"].numpy() > 0])
        labels += list(y["nsp"].numpy()[w["nsp"].numpy() > 0])
    commonest = np.bincount(source.store.tokens).argmax()
    share = np.mean(labels)
    assert source.baselines(phase) == {
        "unigram": pytest.approx(np.mean(np.array(ids) == commonest)),
        "nsp_majority": pytest.approx(max(share, 1 - share)),
    }


@pytest.mark.parametrize("packed", [False, True])
def test_unknown_pieces_are_counted_under_their_masks_too(packed, tmp_path):
    pieces = [piece for piece in PIECES if piece != "old"]
    rules = {"mask_mix": (100, 0, 0), "mask_rate": 0.5, "max_predictions": 8}
    settings = Settings(**SMALLEST | rules, packed=packed)
    data = write_data(tmp_path, pieces)
    source = PretrainingSource(data, settings, OBJECTIVES["mlm+nsp"])
    (phase, _) = phases(settings)
    unknown = pieces.index("[UNK]")
    found = total = 0
    for x, y, w in source._draw(phase, 0).take(20):
        ids, real = x["token_ids"].numpy(), w["mlm"].numpy() > 0
        found += (ids == unknown).sum() + (
            y["mlm"].numpy()[real] == unknown
        ).sum()
        total += x["padding_mask"].numpy().sum()
    measured = source.measure_data(phase)
    assert measured["unknown"] == pytest.approx(found / total)
    assert measured["mask_rate"] > 0.2


@pytest.mark.parametrize("objective", ["left_to_right", "right_to_left"])
def test_rules_of_masks_do_not_bind_an_objective_without_masks(
    records, objective
):
    settings = {"phase_2_data": records["long"], "objectives": objective}
    masks = {"max_predictions": 2, "mask_rate": 0.2, "whole_word": True}
    source(records, **settings, **masks).check()
    with pytest.raises(InputError, match="short_probability 0.1, but"):
        source(records, **settings, short_probability=0.2).check()


def test_records_of_other_documents_than_the_tokens_are_refused(tmp_path):
    place, folders = copied(tmp_path)
    other = write_data(tmp_path / "other", held_out_share=0.5)
    shutil.rmtree(place / "tokens")
    shutil.copytree(f"{other}/tokens", place / "tokens")
    with pytest.raises(InputError, match="were made of different documents"):
        source(folders, phase_2_steps=0).check()


@pytest.mark.parametrize("name", ["lowercase", "strip_accents"])
def test_settings_next_to_the_vocabulary_must_be_those_of_the_data(
    name, tmp_path
):
    folder = write_data(tmp_path / "data", **{name: False})
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    settings = Settings(**SMALLEST, vocabulary=str(path))
    made = PretrainingSource(folder, settings, OBJECTIVES["mlm+nsp"])
    made.check()
    config = {"do_lower_case": True, "strip_accents": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=f"{name}=False, .*.txt say True"):
        made.check()


def test_data_that_are_not_finished_are_called_by_their_folder(tmp_path):
    folder = write_data(tmp_path / "data")
    (Path(folder) / "tokens" / "train" / token_store.MANIFEST).unlink()
    with pytest.raises(InputError, match="data is not finished") as error:
        PretrainingSource(folder, Settings(**SMALLEST), OBJECTIVES["mlm+nsp"])
    assert "tokens" not in str(error.value)
    assert "create_pretraining_data" in str(error.value)


def test_data_without_held_out_documents_is_refused(tmp_path):
    folder = write_data(tmp_path, held_out_share=0)
    settings = Settings(**SMALLEST)
    with pytest.raises(InputError, match="--held_out_share above 0"):
        PretrainingSource(folder, settings, OBJECTIVES["mlm+nsp"])


def copied(tmp_path):
    """Write data that a test may change; return its path and folders."""
    folder = write_data(tmp_path / "data")
    return tmp_path / "data", {"short": folder}


@pytest.mark.parametrize("kind", ["tokens", "."])
def test_swapped_sides_are_refused(kind, tmp_path):
    place, folders = copied(tmp_path)
    source(folders, phase_2_steps=0).check()
    (place / kind / "train").rename(place / "aside")
    (place / kind / "held_out").rename(place / kind / "train")
    (place / "aside").rename(place / kind / "held_out")
    with pytest.raises(InputError, match="'(held_out|train)' data, ex"):
        source(folders, phase_2_steps=0).check()


@pytest.mark.parametrize("kind, name", [("tokens", "store"), (".", "manifest")])
def test_a_copy_of_what_is_trained_on_is_not_held_out(kind, name, tmp_path):
    place, folders = copied(tmp_path)
    sides = place / kind
    shutil.rmtree(sides / "held_out")
    shutil.copytree(sides / "train", sides / "held_out")
    with pytest.raises(
        InputError, match="has 'train' data, expected 'held_out"
    ):
        source(folders, phase_2_steps=0).check()
    path = sides / "held_out" / f"{name}.json"
    manifest = read_json(path)
    del manifest["sha256"], manifest["side"]
    write_manifest(path, manifest)
    with pytest.raises(InputError, match="'side' is missing. Make the"):
        source(folders, phase_2_steps=0).check()
    write_manifest(path, {**manifest, "side": "held_out"})
    with pytest.raises(InputError, match="were made of the same documents"):
        source(folders, phase_2_steps=0).check()
