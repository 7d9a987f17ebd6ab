"""What the scripts share: the help and its groups of flags."""

import re

from run_script import run_script

from official_tasks.tasks.registry import OPTIONS


def test_help_lists_common_flags_first_then_those_of_each_family(tmp_path):
    done = run_script(
        "-m", "official_tasks.finetune", "--help", folder=tmp_path
    )
    text, _, training = done.stdout.partition("\ntraining:\n")
    assert "--lora_rank" in training
    assert "    python -m official_tasks.finetune --task=custom" in text
    assert "--train=reviews.csv \\\n        --text=review" in text
    common, *families = re.split(r"^(--task=.*):$", text, flags=re.MULTILINE)
    flags = {
        title: re.findall(r"^  --(?:\[no\])?(\w+):", part, re.MULTILINE)
        for title, part in zip(families[::2], families[1::2], strict=True)
    }
    assert {title: (names[0], names[-1]) for title, names in flags.items()} == {
        "--task=custom": ("answer", "words"),
        "--task=embedding, ranking": ("drop_unlabelled", "text_pair"),
        "--task=ner, conll2003, wnut17, wikiann": (
            "document_context",
            "recipe",
        ),
        "--task=squad1, squad2, triviaqa": ("null_odds", "stride"),
    }
    own = {name for names in flags.values() for name in names}
    assert sorted(own | {"data_dir", "train", "dev", "test"}) == OPTIONS
    for name in ("init", "data_dir", "train", "epochs", "task"):
        assert f"  --{name}: " in common
    assert not own & set(re.findall(r"^  --(?:\[no\])?(\w+):", common, re.M))
