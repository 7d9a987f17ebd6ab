"""Writes the pages of the documentation's site, and builds it.

    python tools/maintenance/site_pages.py

In: README.md, docs/, and the code: docstrings of the public names, sizes,
presets, signatures, each script's --help. Out: the site in build/site; open
build/site/index.html. A link that leads nowhere, in a page or in a docstring,
fails the build. Takes about 20 seconds.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = ROOT / "build" / "pages"


def main():
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for name, page in (
        ("README.md", "index.md"),
        ("CONTRIBUTING.md", "contributing.md"),
        ("CHANGELOG.md", "changelog.md"),
    ):
        (PAGES / page).write_text(as_page((ROOT / name).read_text()))
    for path in PAGES.glob("*.md"):
        path.write_text(as_page(path.read_text()))
    (PAGES / "api.md").write_text(api())
    (PAGES / "tables.md").write_text(tables())
    (PAGES / "scripts.md").write_text(scripts())
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet")
    return subprocess.run(command, cwd=ROOT).returncode


def as_page(text):
    """A file's text with its links as they are within the site."""
    for there, here in (
        ("](docs/", "]("),
        ("](../CONTRIBUTING.md", "](contributing.md"),
        ("](CONTRIBUTING.md", "](contributing.md"),
        ("](CHANGELOG.md", "](changelog.md"),
        ("](README.md", "](index.md"),
    ):
        text = text.replace(there, here)
    return text


def api():
    """The public names, each with its docstring."""
    import bert_keras

    parts = [
        "# API\n\nEverything here is a name of `bert_keras`. B is the batch, T "
        "the tokens of a row, D the hidden size, M the masked positions, V the "
        "vocabulary, C the classes, K the choices.\n"
    ]
    for name, home in bert_keras._HOME.items():
        parts.append(f"::: bert_keras.{home}.{name}\n")
    return "\n".join(parts)


def tables():
    """Sizes, presets and signatures, as the code has them."""
    from bert_keras.interop import downloads
    from bert_keras.interop.head_table import HEADS
    from bert_keras.modeling.sizes import SIZES

    numbers = ("num_layers", "num_heads", "hidden_dim", "intermediate_dim")
    names = ("tiny", "mini", "small", "medium", "base", "large")
    sizes = [(name, *(SIZES[name][n] for n in numbers)) for name in names]
    aliases = {}
    for alias, name in downloads.ALIASES.items():
        aliases.setdefault(name, []).append(alias)
    presets = [
        (
            f"`{name}`",
            " ".join(f"`{alias}`" for alias in aliases.get(name, ())),
            "yes" if name in downloads.SHA256 else "no",
        )
        for name in downloads.RELEASED
    ]
    presets[:0] = [
        (f"`{name}`, in the package", "", "yes")
        for name in downloads.packaged_names()
    ]
    signatures = [
        (
            f"`{cls}`",
            " ".join(f"`{name}`" for name in head.signatures),
        )
        for cls, head in HEADS.items()
        if head.signatures
    ]
    return "\n\n".join(
        [
            "# Sizes, presets, signatures",
            "## Sizes",
            "By name: `BertEncoder(**SIZES[name])`, `pretrain --size=NAME`.",
            table(("name", *numbers), sizes),
            "## Presets",
            "Names that `from_preset` takes: of the package, or fetched from "
            "where the original's authors put them, with keras-hub's names "
            "for the same. Any folder "
            "of the Hugging Face Hub is `hf://org/name`; "
            "[Weights](weights.md) has the rest.",
            table(("name", "keras-hub's name", "hash published"), presets),
            "## Signatures",
            "What an export of a model answers, its default first; "
            "[Serving](serving.md) says with which inputs and outputs. Every "
            "export also answers `tokenize`.",
            table(("model", "signatures"), signatures),
        ]
    )


def table(columns, rows):
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


SHOWN_TASKS = ("custom", "customspans", "customtags", "customchoices")
SHOWN_TASKS += ("embedding", "ranking", "squad2", "ner")


def scripts():
    """The --help of every script."""
    from official_tasks.commands import find_commands

    parts = ["# Scripts and their flags"]
    tasks = [f"finetune --task={name}" for name in SHOWN_TASKS]
    for name in (*find_commands(), *tasks):
        command = ("-m", "official_tasks.commands", *name.split())
        text = subprocess.run(
            (sys.executable, *command, "--help"),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.replace(f"{ROOT}{os.sep}", "")
        title = f"## bert-keras {name}"
        parts.append(f"{title}\n\n```text\n{text.strip()}\n```")
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
