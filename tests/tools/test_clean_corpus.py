"""What pre-training is to learn from is prose, once, on one side."""

import json
import sys

from run_script import ROOT, run_script

sys.path.insert(0, str(ROOT / "tools" / "maintenance"))
PROSE = "It was a long way to the sea, and nobody had told them of the rain."
RICH = "She was clever, and she was rich."
DROPPED = {
    "heading": "CHAPTER IV",
    "licence": "This text is under a Creative Commons licence, it says.",
    "link": "Watch this video at https://example.org to learn more about it.",
    "formula or table": "1,204 | 3.5 | 2,118 | 7.0 = 12,004 | 1999.",
    "repeated": PROSE.upper(),
}


def test_prose_is_kept_and_what_is_dropped_is_counted(tmp_path):
    chapter = ["References", "Smith, J. A history of the sea. London, Ink."]
    chapter += ["The Sea", PROSE, *DROPPED.values(), '"Yes," he said.']
    files = {
        "openstax/astronomy/1.txt": ["Preface", "OpenStax is a charity."],
        "openstax/astronomy/2.txt": chapter,
        "openstax/business-law/1.txt": ["A law that is not to be learned."],
        "classics/Jane_Austen_Emma.txt": [RICH],
        "classics/Someone_Else.txt": [RICH],
    }
    for name, paragraphs in files.items():
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(paragraphs), encoding="utf-8")
    command = (ROOT / "tools/maintenance/clean_corpus.py", "--input=corpus")
    done = run_script(*command, "--output=clean", folder=tmp_path)
    assert done.returncode == 0, done.stderr

    clean = tmp_path / "clean"
    texts = {
        path.relative_to(clean).as_posix(): path.read_text(encoding="utf-8")
        for path in clean.rglob("*.txt")
    }
    # Less than eight words may stand twice.
    assert texts == {
        "train/openstax/astronomy/2.txt": f'{PROSE}\n"Yes," he said.\n',
        "train/classics/Someone_Else.txt": RICH + "\n",
        "held_out/classics/Jane_Austen_Emma.txt": RICH + "\n",
    }
    counts = json.loads((clean / "counts.json").read_text())
    assert {k: v["paragraphs"] for k, v in counts["dropped"].items()} == {
        **dict.fromkeys(DROPPED, 1),
        "heading": 3,  # References, The Sea, CHAPTER IV
        "list": 1,
        "preface": 2,
    }
    assert counts["train"] == {"documents": 2, "characters": 115}
    again = run_script(*command, "--output=clean", folder=tmp_path)
    assert again.returncode == 2 and "--overwrite" in again.stderr


def test_an_empty_folder_is_refused(tmp_path):
    (tmp_path / "corpus").mkdir()
    done = run_script(
        ROOT / "tools/maintenance/clean_corpus.py",
        "--input=corpus",
        "--output=clean",
        folder=tmp_path,
    )
    assert done.returncode == 2 and "holds no *.txt" in done.stderr
