import json
import os

import keras
import numpy as np
import pytest
from scipy import stats
from task_samples import write_csv
from toy_pretraining import PIECES, SMALLEST, WORDS, write_data

import bert_keras
from bert_keras import BertEncoder, BertPreprocessor, InputError
from bert_keras.modeling.paired import (
    DirectionalClassifier,
    PairedSpanPredictor,
    PairedTagger,
)
from bert_keras.text.tokenizer import WordPieceTokenizer
from bert_keras.training.run import RunFolder
from official_tasks import pretrain, pretraining_run, reproduce, reproduce_plan
from official_tasks.custom import CustomTask
from official_tasks.reproduce_report import draw, text
from official_tasks.reproduce_results import gathered
from official_tasks.reproduce_rows import Table, TaskRow, Variant
from official_tasks.reproduce_run import Inputs, Run, Work, shared_name, task_of
from official_tasks.reproduce_scales import SCALES
from official_tasks.reproduce_statistics import compare, two_sided
from official_tasks.reproduce_tables import PAPER_ONLY, TABLES
from official_tasks.reproduce_variants import vary
from official_tasks.squad import SQUAD_1, SquadTask

IDS = np.array([[2, 7, 8, 9, 3], [2, 10, 3, 0, 0]], "int32")
INPUTS = {"token_ids": IDS, "padding_mask": (IDS > 0).astype("int32")}
TUNING = {
    "epochs": 1.0,
    "batch_size": 8,
    "learning_rate": 1e-3,
    "sequence_length": 16,
    "dtype": "float32",
}
TOY = {**SMALLEST, "phase_2_steps": 0, "steps": 4, "dtype": "float32"}


def encoder(attention="left_to_right", seed=0):
    keras.utils.set_random_seed(seed)
    return BertEncoder(
        len(PIECES),
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=32,
        dropout=0.0,
        attention_dropout=0.0,
        attention=attention,
    )


def preprocessor():
    return BertPreprocessor(WordPieceTokenizer(PIECES), 16)


def all_tables():
    for scale in SCALES:
        for name in TABLES:
            if scale == "paper" or name not in PAPER_ONLY:
                yield scale, name, reproduce.table_of(name, scale)


# The two directions side by side.


def test_a_pair_reads_both_encoders_vectors_and_the_ends_that_saw_all():
    model = DirectionalClassifier(encoder(), ["no", "yes"], paired=True)
    model.second.set_weights(encoder("right_to_left", seed=1).get_weights())
    ahead = model.encoder(INPUTS)["sequence_output"].numpy()
    back = model.second(INPUTS)["sequence_output"].numpy()
    last = np.stack([ahead[0, 4], ahead[1, 2]])
    features = np.concatenate([last, back[:, 0]], axis=-1)
    kernel, bias = model.classifier.get_weights()
    expected = features @ kernel + bias
    np.testing.assert_allclose(model(INPUTS), expected, atol=1e-6)
    assert model.second.attention == "right_to_left"


def test_tokens_of_a_pair_depend_on_both_sides_and_alone_on_one():
    pair = PairedTagger(encoder(), ["O", "X"])
    alone = bert_keras.BertTagger(encoder(), ["O", "X"])
    changed = IDS.copy()
    changed[0, 3] = 12  # to the right of place 2
    for model, differs in ((pair, True), (alone, False)):
        before, after = model(IDS).numpy(), model(changed).numpy()
        assert np.allclose(before[0, 2], after[0, 2]) != differs


@pytest.mark.parametrize(
    "make",
    [
        lambda: DirectionalClassifier(encoder(), ["no", "yes"]),
        lambda: DirectionalClassifier(encoder(), ["no", "yes"], paired=True),
        lambda: PairedTagger(encoder(), ["O", "X"]),
        lambda: PairedSpanPredictor(encoder()),
    ],
)
def test_a_directional_model_survives_a_folder_and_a_keras_file(make, tmp_path):
    model = make()
    expected = keras.tree.flatten(model(INPUTS))
    model.save_preset(tmp_path / "own", preprocessor())
    model.save(tmp_path / "model.keras")
    for read in (
        type(model).from_preset(tmp_path / "own"),
        keras.saving.load_model(tmp_path / "model.keras"),
    ):
        for found, wanted in zip(
            keras.tree.flatten(read(INPUTS)), expected, strict=True
        ):
            np.testing.assert_allclose(found, wanted, atol=1e-6)
    poolers = [w.path for w in model.trainable_weights if "pooler" in w.path]
    assert not poolers


def test_another_direction_is_refused():
    with pytest.raises(InputError, match="sees bidirectional"):
        PairedTagger(encoder("bidirectional"), ["O", "X"])


# Variants of a task.


def reviews(folder):
    """A custom task of two classes; its options."""
    rows = [
        (f"the old {('ship', 'goat')[i % 2]} {WORDS[i % 9]}", f"class {i % 2}")
        for i in range(40)
    ]
    return {
        "train": str(write_csv(folder / "train.csv", rows)),
        "dev": str(write_csv(folder / "dev.csv", rows[:12])),
    }


def test_a_variant_sees_fewer_rows_the_same_each_time(tmp_path):
    task = CustomTask(**reviews(tmp_path))
    varied = vary(task, {"train": 10, "dev": 5})
    first, again = varied.read("train"), varied.read("train")
    assert len(first) == 10
    assert first == again
    assert set(first) <= set(task.read("train"))
    assert len(varied.read("dev")) == 5
    assert len(task.read("train")) == 40


def test_a_question_sees_the_sentence_of_its_answer_alone(tmp_path):
    context = "Ada was born in 1815. She met Mr. Babbage in London.  He built."
    places = {"1815": 16, "Babbage in London": 34, "1815. She": 16, "xy": 3}
    asked = [
        {
            "id": answer,
            "question": "Which?",
            "answers": [{"text": answer, "answer_start": start}],
        }
        for answer, start in places.items()
    ]
    articles = [{"paragraphs": [{"context": context, "qas": asked}]}]
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"data": articles}))
    task = SquadTask(SQUAD_1, dev=str(path))
    seen = vary(task, sentence=True).read("dev")
    assert [(q.context, q.start) for q in seen] == [
        ("Ada was born in 1815.", 16),
        ("She met Mr. Babbage in London.", 12),
        ("Ada was born in 1815. She met Mr. Babbage in London.", 16),
        (context, 3),  # nobody knows where that answer stands
    ]
    assert [q.answers for q in seen] == [(answer,) for answer in places]
    assert vary(task).read("dev") == task.read("dev")


def test_a_variant_puts_its_part_between_encoder_and_head(tmp_path):
    back = encoder("right_to_left", seed=1)
    back.save_preset(tmp_path / "back", preprocessor())
    task = CustomTask(**reviews(tmp_path))
    lstm = vary(task, bilstm_dim=4).build(encoder())
    assert (type(lstm), lstm.bilstm_dim) == (bert_keras.BertClassifier, 4)
    both_ways = vary(task).build(encoder("bidirectional"))
    assert type(both_ways) is bert_keras.BertClassifier
    alone = vary(task).build(encoder())
    assert (type(alone), alone.paired) == (DirectionalClassifier, False)
    pair = vary(task, second=tmp_path / "back").build(encoder())
    np.testing.assert_array_equal(
        pair.second(INPUTS)["sequence_output"], back(INPUTS)["sequence_output"]
    )
    encoder().save_preset(tmp_path / "ahead", preprocessor())
    with pytest.raises(InputError, match="trained right to left"):
        vary(task, second=tmp_path / "ahead").build(encoder())


# Comparing.


def test_the_paired_test_is_scipys():
    random = np.random.default_rng(0)
    for count in range(2, 9):
        one, other = random.normal(size=(2, count))
        expected = stats.ttest_rel(one, other)
        assert compare(one, other)["p"] == pytest.approx(expected.pvalue)
    assert two_sided(0.0, 0.0, 2) == 1
    assert two_sided(0.1, 0.0, 2) == 0


def test_a_verdict_tells_the_sign_from_the_spread():
    near, far, low = [0.5, 0.52, 0.51], [0.9, 0.91, 0.92], [0.3, 0.7, 0.5]
    assert compare(far, near)["verdict"] == "agrees"
    assert compare(near, far)["verdict"] == "disagrees"
    assert compare(near, far, claimed=-1)["verdict"] == "agrees"
    assert compare(near, low)["verdict"] == "hidden by spread"
    assert compare(near, low, claimed=0)["verdict"] == "hidden by spread"
    assert compare(far, near, claimed=0)["verdict"] == "disagrees"
    assert compare([0.5], [0.4])["verdict"] == "one seed tells no spread"


def toy_results():
    table = Table(
        "Toy",
        {"small": {}, "large": {}},
        {
            "small": Variant("small", figures={"A": 80.0, "perplexity": 5.0}),
            "large": Variant("large", figures={"A": 79.0, "perplexity": 4.0}),
        },
        [TaskRow("task", "custom", "accuracy", 10, {}, column="A")],
        [("large", "small")],
        held_out="perplexity",
        deviations=("Toys.",),
    )
    scores = {
        "small": {"task": [0.5, 0.51, 0.52]},
        "large": {"task": [0.7, 0.71, 0.73]},
    }
    held_out = {
        "small": [{"perplexity": p} for p in (50.0, 51.0, 52.0)],
        "large": [{"perplexity": p} for p in (30.0, 32.0, 31.0)],
    }
    return gathered(table, 3, scores, held_out)


def test_results_compare_with_the_papers_signs_and_perplexity_from_below():
    by_score, by_perplexity = toy_results()["comparisons"]
    # The paper's figures say the large one is worse: ours says otherwise.
    assert (by_score["claimed"], by_score["verdict"]) == (-1, "disagrees")
    assert by_score["difference"] == pytest.approx(0.61 / 3)
    assert (by_perplexity["claimed"], by_perplexity["verdict"]) == (1, "agrees")


def test_a_table_is_told_beside_the_papers_figures(tmp_path):
    told = text(toy_results())
    assert "51.0 ± 1.0 (80)" in told
    assert "31.0 ± 1.0 (4)" in told
    assert "- large below small on task: disagrees (+20.3" in told
    assert "- Toys." in told
    draw(toy_results(), tmp_path / "table.svg")
    drawn = (tmp_path / "table.svg").read_text()
    assert "the paper's" in drawn and "71.3" in drawn


def test_scores_over_steps_are_drawn_as_lines(tmp_path):
    results = toy_results() | {"steps": {"small": 10, "large": 20}}
    draw(results, tmp_path / "table.svg")
    assert "steps of pre-training" in (tmp_path / "table.svg").read_text()


# The tables.


def test_every_table_names_only_what_it_has():
    for scale, name, table in all_tables():
        for variant in table.variants.values():
            released = variant.run.startswith("hf://")
            assert released or variant.run in table.runs, (scale, name)
            assert variant.second is None or variant.second in table.runs
        for pair in table.comparisons:
            assert set(pair) <= table.variants.keys(), (scale, name)
        used = {v.run for v in table.variants.values()}
        used |= {v.second for v in table.variants.values()}
        assert set(table.runs) <= used


def test_runs_of_a_table_differ_in_the_one_thing_only():
    varied = {
        name: {key for own in table.runs.values() for key in own}
        for scale, name, table in all_tables()
        if scale == "small"
    }
    assert varied == {
        "pretraining_tasks": {"objectives"},
        "model_size": {"num_layers", "hidden_dim", "num_heads"},
        "masking_mix": {"mask_mix"},
        "steps": {"objectives", "steps"},
        "feature_based": set(),
    }


def test_the_papers_mix_of_mask_same_random_becomes_masked_replaced_kept():
    runs = reproduce.table_of("masking_mix", "paper").runs
    assert runs["80/0/20"] == {"mask_mix": (80, 20, 0)}
    assert runs["80/20/0"] == {"mask_mix": (80, 0, 20)}
    assert runs["0/20/80"] == {"mask_mix": (0, 80, 20)}


@pytest.mark.parametrize("scale, name", [(s, n) for s, n, _ in all_tables()])
def test_a_plan_tells_hours_disk_and_commands(scale, name):
    table = reproduce.table_of(name, scale)
    inputs = Inputs(data_dir="glue")
    plan = reproduce_plan.jobs(table, scale, inputs, 1e14, "runs/x")
    jobs = len(table.runs) + sum(map(len, map(table.tasks_of, table.variants)))
    assert len(plan) == jobs
    assert all(job.hours > 0 and job.disk > 0 for job in plan)
    lines = reproduce_plan.lines(plan, table, 3, 1e14)
    total = 3 * sum(job.hours for job in plan)
    together = next(line for line in lines if line.startswith("Together: "))
    shown = f"{total:,.1f} hours" if total >= 1 else f"{60 * total:.1f} minutes"
    assert shown in together
    assert any("python -m official_tasks." in line for line in lines)


def test_a_plan_counts_the_windows_that_rows_are_cut_into():
    table = TABLES["pretraining_tasks"]("small")
    plan = reproduce_plan.jobs(table, "small", Inputs(), 1e14, "runs/x")
    hours = {job.name: job.hours for job in plan}
    # 4,000 questions of 1.6 windows, 3 epochs; 5,000 sentences, 2 epochs.
    ratio = hours["BERT on spans"] / hours["BERT on sentiment"]
    assert ratio == pytest.approx(4000 * 1.6 * 3 / (5000 * 2))


def test_the_plans_commands_are_those_of_the_scripts():
    table = reproduce.table_of("squad", "paper")
    plan = reproduce_plan.jobs(table, "paper", Inputs(), 1e14, "runs/squad")
    assert plan[1].command == (
        "python -m official_tasks.finetune --task=squad2 --data_dir=DATA_DIR "
        "--init=hf://google-bert/bert-base-uncased --output=runs/squad/"
        "base/SQuAD_2_0 --epochs=2.0 --batch_size=48 --learning_rate=5e-05 "
        "--sequence_length=384"
    )


def test_what_a_table_does_not_have_is_refused():
    with pytest.raises(InputError, match="give --scale=paper"):
        reproduce.table_of("glue", "small")
    with pytest.raises(InputError, match="no task 'spam'.*spans"):
        reproduce.table_of("pretraining_tasks", "small", ["spam"])
    table = reproduce.table_of("pretraining_tasks", "small", ["spans"])
    assert [row.name for row in table.tasks] == ["spans"]


def test_options_of_tasks_are_read_and_checked():
    given = ["squad1.stride=32", "wikiann.data_dir=folder"]
    expected = {"squad1": {"stride": 32}, "wikiann": {"data_dir": "folder"}}
    assert reproduce.options_of(given) == expected
    with pytest.raises(InputError, match="expected TASK.NAME=VALUE"):
        reproduce.options_of(["stride=32"])
    with pytest.raises(InputError, match="the options of squad1 are"):
        reproduce.options_of(["squad1.strides=32"])


def test_a_tasks_own_files_stand_over_the_folder_of_all(tmp_path):
    row = TaskRow("spans", "squad1", "f1", 10, {})
    for own, expected in (
        ({}, {"data_dir": "all"}),
        ({"data_dir": "own"}, {"data_dir": "own"}),
        ({"train": "a", "dev": "b"}, {"train": "a", "dev": "b"}),
    ):
        inputs = Inputs(data_dir="all", options={"squad1": own})
        assert task_of(row, inputs)[1] == expected


# A whole table, at toy size.


def toy_table(names):
    """A part of the table of pre-training tasks, on a toy task."""
    whole = TABLES["pretraining_tasks"]("small")
    variants = {name: whole.variants[name] for name in names}
    runs = {v.run for v in variants.values()}
    runs |= {v.second for v in variants.values()}
    return whole._replace(
        runs={k: v for k, v in whole.runs.items() if k in runs},
        variants=variants,
        tasks=[TaskRow("reviews", "custom", "accuracy", 16, {}, dev_rows=8)],
        comparisons=[p for p in whole.comparisons if set(p) <= set(names)],
    )


def test_a_table_is_run_and_gone_on_with_and_nothing_is_trained_twice(
    tmp_path, monkeypatch
):
    table = toy_table(["LTR, no NSP", "LTR and RTL"])
    table = table._replace(comparisons=[("LTR, no NSP", "LTR and RTL")])
    data = write_data(tmp_path / "data")
    inputs = Inputs(data=data, options={"custom": reviews(tmp_path)})
    arguments = (table, "small", tmp_path / "out", inputs)
    results = reproduce.run(*arguments, 1, TOY, TUNING)
    for name in ("LTR, no NSP", "LTR and RTL"):
        (score,) = results["scores"][name]["reviews"]
        assert 0 <= score <= 1
    assert results["held_out"]["left_to_right"][0]["lm_perplexity"] > 1
    kept = json.loads((tmp_path / "out/results.json").read_text())
    assert kept == json.loads(json.dumps(results))
    assert (tmp_path / "out/table.txt").exists()
    assert (tmp_path / "out/table.svg").exists()

    def refuse(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(pretrain, "run", refuse)
    assert reproduce.run(*arguments, 1, TOY, TUNING) == results
    with pytest.raises(AssertionError, match="trained again"):
        reproduce.run(*arguments, 2, TOY, TUNING)  # one more seed
    with pytest.raises(InputError, match="other settings: .*scale"):
        reproduce.run(table, "paper", tmp_path / "out", inputs, 1, TOY, TUNING)


def test_tables_share_the_runs_that_they_have_in_common(tmp_path, monkeypatch):
    def same(name, run):
        table = TABLES[name]("small")
        return shared_name({**SCALES["small"], **table.runs[run]}, "small")

    usual = same("pretraining_tasks", "mlm+nsp")
    assert usual == same("feature_based", "mlm+nsp")
    assert usual == same("masking_mix", "80/10/10")
    assert usual == same("model_size", "12x768x12")
    assert shared_name({"steps": 2000}, "paper") != shared_name({}, "paper")
    names = [same("masking_mix", run) for run in ("80/10/10", "0/0/100")]
    assert len({*names, same("pretraining_tasks", "mlm")}) == 3

    table = toy_table(["no NSP"])
    inputs = Inputs(
        data=write_data(tmp_path / "data"),
        options={"custom": reviews(tmp_path)},
        pretrained=str(tmp_path / "shared"),
    )
    one, other = (
        (table, "small", tmp_path / name, inputs, 1, TOY, TUNING)
        for name in ("one", "other")
    )
    results = reproduce.run(*one)
    assert not (tmp_path / "one/pretrain").exists()
    assert os.listdir(tmp_path / "shared") == ["small"]
    monkeypatch.setattr(
        pretraining_run, "pretrain", lambda *_: pytest.fail("trained again")
    )
    assert reproduce.run(*other) == results
    text = inputs._replace(data=None, corpus=f"{tmp_path}/*.txt")
    with pytest.raises(InputError, match="share the data too: give --data"):
        reproduce.run(table, "small", tmp_path / "third", text, 1)


def test_runs_beside_each_other_give_the_same_table(tmp_path, capfd):
    table = toy_table(["LTR, no NSP", "LTR and RTL"])
    inputs = Inputs(
        data=write_data(tmp_path / "data"),
        options={"custom": reviews(tmp_path)},
    )
    one, other = (
        reproduce.run(
            table, "small", tmp_path / str(jobs), inputs, 1, TOY, TUNING, jobs
        )
        for jobs in (1, 2)
    )
    for name in ("scores", "held_out"):
        flat = (keras.tree.flatten(results[name]) for results in (one, other))
        np.testing.assert_allclose(*flat, rtol=1e-4)
    stages = set(os.listdir(tmp_path / "1/stages"))
    assert stages == set(os.listdir(tmp_path / "2/stages")) and len(stages) == 4
    assert "LTR_and_RTL-reviews-0: " in capfd.readouterr().out


def test_a_tasks_mistake_is_told_before_any_training(tmp_path, monkeypatch):
    monkeypatch.setattr(
        pretraining_run, "pretrain", lambda *_: pytest.fail("trained before")
    )
    inputs = Inputs(
        data=write_data(tmp_path / "data"),
        options={"custom": reviews(tmp_path) | {"dev": "nowhere.csv"}},
    )
    table = toy_table(["no NSP"])
    with pytest.raises(InputError, match="nowhere.csv"):
        reproduce.run(table, "small", tmp_path / "out", inputs, 1, TOY, TUNING)


def test_data_are_made_of_a_corpus_once(tmp_path):
    table = toy_table(["no NSP"])
    for number in range(100):  # a twentieth is held out
        lines = [f"The old ship {word} {number}." for word in WORDS]
        (tmp_path / f"{number}.txt").write_text("\n".join(lines))
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    inputs = Inputs(
        corpus=f"{tmp_path}/[0-9]*.txt", vocabulary=tmp_path / "vocab.txt"
    )
    with RunFolder(tmp_path / "out", {}) as folder:
        work = Work(folder.path, table, "small", inputs)
        run = Run(folder, work, 1)
        data = run._data()
        assert os.path.isfile(f"{data}/tokens/held_out/store.json")
        made = os.stat(f"{data}/tokens/train/tokens.bin").st_mtime_ns
        assert run._data() == data
        assert os.stat(f"{data}/tokens/train/tokens.bin").st_mtime_ns == made
        with pytest.raises(InputError, match="give --corpus"):
            Run(folder, work._replace(inputs=Inputs()), 1)._data()


@pytest.mark.skipif(
    not os.environ.get("BERT_KERAS_LONG"),
    reason="trains every variant of every table: set BERT_KERAS_LONG=1",
)
@pytest.mark.parametrize(
    "name", [name for name in TABLES if name not in PAPER_ONLY]
)
def test_every_table_runs_to_its_end(name, tmp_path):
    table = reproduce.table_of(name, "small", ["entities"])
    runs = {
        run: own | ({"steps": 4} if "steps" in own else {})
        for run, own in table.runs.items()
    }
    sizes = ("num_layers", "num_heads", "hidden_dim")
    own = {key for settings in runs.values() for key in settings}
    toy = {k: v for k, v in TOY.items() if k not in own}
    if own.isdisjoint(sizes):
        toy["num_layers"] = 4  # recipes read four layers
    lines = []
    for number in range(20):
        person = ("ada", "ben")[number % 2]
        lines += [f"{person}\tB-PER", "sailed\tO", "waves\tB-LOC", ""]
    for split in ("train", "dev"):
        (tmp_path / split).write_text("\n".join(lines))
    options = {"data_dir": str(tmp_path), "lstm_dim": 4}
    inputs = Inputs(
        data=write_data(tmp_path / "data"), options={"wikiann": options}
    )
    results = reproduce.run(
        table._replace(runs=runs),
        "small",
        tmp_path / "out",
        inputs,
        2,
        toy,
        TUNING,
    )
    assert set(results["scores"]) == set(table.variants)
    told = (tmp_path / "out/table.txt").read_text()
    assert "Compared, paired over the seeds:" in told
