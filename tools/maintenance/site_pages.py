"""Writes the pages of the documentation's site, and builds the site.

    python tools/maintenance/site_pages.py

Input: README.md, CONTRIBUTING.md, CHANGELOG.md, docs/ and the code. The script
copies the pages, and lists the code's public docstrings, sizes, presets,
signatures and --help texts on further pages. Output: the site in build/site;
open build/site/index.html. The build fails if a page or a docstring has a
broken link. Takes about 20 seconds. Needs what `make docs` installs.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = ROOT / "build" / "pages"
WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")  # word or quoted text


def main():
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for name, page in (
        ("README.md", "index.md"),
        ("CONTRIBUTING.md", "contributing.md"),
        ("CHANGELOG.md", "changelog.md"),
    ):
        shutil.copy(ROOT / name, PAGES / page)
    (PAGES / "tour.md").write_text(render_notebook(PAGES / "tour.ipynb"))
    for path in PAGES.glob("*.md"):
        path.write_text(as_page(path.read_text()))
    (PAGES / "api.md").write_text(api())
    (PAGES / "tables.md").write_text(tables())
    (PAGES / "scripts.md").write_text(scripts())
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet")
    return subprocess.run(command, cwd=ROOT).returncode


def render_notebook(path):
    """Return a notebook as Markdown, with its text, code and output."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            lines = output.get("text") or output["data"]["text/plain"]
            parts.append(f"```text\n{''.join(lines).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def as_page(text):
    """Adapt a Markdown text to the site: change links and fence commands."""
    for link, in_site in (
        ("](docs/", "]("),
        ("](../CONTRIBUTING.md", "](contributing.md"),
        ("](CONTRIBUTING.md", "](contributing.md"),
        ("](CHANGELOG.md", "](changelog.md"),
        ("](README.md", "](index.md"),
        ("](tour.ipynb", "](tour.md"),
    ):
        text = text.replace(link, in_site)
    return fence_commands(text)


def fence_commands(text):
    """Return a text with fenced code blocks instead of indented blocks."""
    lines, fenced, indented = [], False, False
    for line in text.split("\n"):
        fenced ^= line.startswith("```")
        begins = not indented and not (lines and lines[-1])
        if not fenced and line.startswith("    ") and (begins or indented):
            if not indented:
                lines.append("```sh")
            indented = True
            line = wrap_command(line[4:])
        elif indented:
            lines.append("```")
            indented = False
        lines.append(line)
    return "\n".join(lines)


def wrap_command(line, width=72):
    """Wrap a long `python` command to several lines, but not inside quotes."""
    if len(line) <= width or not line.startswith("python "):
        return line
    lines = [""]
    for word in WORD.findall(line):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


def api():
    """Return the page of the public names with their docstrings."""
    import bert_keras

    parts = [
        "# API\n\nThe public names of `bert_keras`. Letters in shapes: B batch "
        "size, T tokens of a row, D hidden size, M masked positions of a row, "
        "V vocabulary size, C classes, K choices.\n"
    ]
    for name, module in bert_keras._MODULES.items():
        parts.append(f"::: bert_keras.{module}.{name}\n")
    return "\n".join(parts)


def tables():
    """Return the page that lists sizes, presets and signatures."""
    from bert_keras.interop import downloads
    from bert_keras.interop.head_table import HEADS
    from bert_keras.modeling.sizes import SIZES

    columns = ("num_layers", "num_heads", "hidden_dim", "intermediate_dim")
    names = ("tiny", "mini", "small", "medium", "base", "large")
    sizes = [(name, *(SIZES[name][n] for n in columns)) for name in names]
    aliases = {}
    for alias, name in downloads.ALIASES.items():
        aliases.setdefault(name, []).append(alias)
    presets = [
        (
            f"`{name}`",
            " ".join(f"`{alias}`" for alias in aliases.get(name, ())),
        )
        for name in downloads.RELEASED
    ]
    presets[:0] = [
        (f"`{name}`, in the package", "") for name in downloads.packaged_names()
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
            "Usage: `BertEncoder(vocabulary_size, **SIZES[name])` or "
            "`pretrain --size=NAME`.",
            table(("name", *columns), sizes),
            "## Presets",
            "Names for `from_preset`. It also takes `hf://org/name`, a model "
            "of the Hugging Face Hub, and [other formats](formats.md).",
            table(("name", "keras-hub's name"), presets),
            "## Signatures",
            "An export of a model has these signatures. The first one is the "
            "default. Every export also has `tokenize`. [Serving](serving.md) "
            "lists inputs and outputs.",
            table(("model", "signatures"), signatures),
        ]
    )


def table(columns, rows):
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


SHOWN_TASKS = ("classify", "multilabel", "regress", "spans", "tags", "choices")
SHOWN_TASKS += ("embed", "rank", "squad2", "ner")


def scripts():
    """Return the page with the --help text of every command.

    The flags of `finetune` are shown for each task of `SHOWN_TASKS`.
    """
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
