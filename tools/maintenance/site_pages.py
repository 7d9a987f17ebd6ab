"""Writes the pages of the documentation's site, and builds the site.

    python tools/maintenance/site_pages.py

Input: README.md, CONTRIBUTING.md, CHANGELOG.md, docs/ and the code. The script
copies the pages, and lists the code's public docstrings, sizes, presets,
signatures and flags on further pages. Output: the site in build/site; open
build/site/index.html. The build fails if a page or a docstring has a broken
link. Takes about 40 seconds. Needs what `make docs` installs.
"""

import ast
import html
import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from absl import flags

ROOT = Path(__file__).parent.parent.parent
PAGES = ROOT / "build" / "pages"
# A flag in a text, with its value.
VALUE = r"=(?:[^\s|,;:)]|,(?=\w))*[\w'\"]"
FLAG = re.compile(rf"(?<![\w`-])(--\w+(?:{VALUE})?)")
DIAGRAM = re.compile(r"```mermaid\nflowchart TD\n(.*?)```", re.DOTALL)
BOX = r'(\w+)(?:\["(.*?)"\])?'
EDGE = re.compile(rf'{BOX} -->(?:\|"?(.*?)"?\|)? {BOX}')


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
    for name, text in api().items():
        (PAGES / f"{name}.md").write_text(text)
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
    """Return a Markdown text with links to the pages of the site."""
    for link, in_site in (
        ("](docs/", "]("),
        ("](../CONTRIBUTING.md", "](contributing.md"),
        ("](CONTRIBUTING.md", "](contributing.md"),
        ("](CHANGELOG.md", "](changelog.md"),
        ("](README.md", "](index.md"),
        ("](tour.ipynb", "](tour.md"),
    ):
        text = text.replace(link, in_site)
    return DIAGRAM.sub(lambda found: draw_boxes(found[1]), text)


def draw_boxes(edges):
    """Return HTML of a Mermaid diagram that is one chain of boxes.

    site.css draws the boxes. Mermaid's own script would need a network when the
    page is read. The text beside an arrow to an earlier box names this box.

    Raises:
        ValueError: a line is no arrow from the last box.
    """
    functions, parts = {}, []
    for line in edges.splitlines():
        found = EDGE.fullmatch(line.strip())
        if not found or functions and found[1] != [*functions][-1]:
            raise ValueError(f"not an arrow from the last box: {line}")
        start, first, passed, end, second = found.groups("")
        if not functions:
            parts.append(_draw_box(functions, start, first))
        back = f"back to {functions[end]}" if end in functions else ""
        text = ", ".join(filter(None, (html.escape(passed), back)))
        parts.append(f"<span>{text}</span>")
        if not back:
            parts.append(_draw_box(functions, end, second))
    return f'<div class="boxes">{"".join(parts)}</div>'


def _draw_box(functions, name, box):
    file, functions[name] = box.split("<br/>")
    return f"<div><b>{functions[name]}</b><br/><code>{file}</code></div>"


# Page of the API -> public names, in the order in which people need them.
API = {
    "Models": "BertClassifier BertTagger BertSpanPredictor BertEmbedder "
    "BertChooser BertPretrainer BertCausalModel BertEncoder",
    "Text": "BertPreprocessor WordPieceTokenizer SegmentPacker TokenMasker "
    "align_words learn_vocabulary extend_vocabulary extend_model",
    "Training": "adamw lamb make_strategy InBatchNegatives CosineRegression "
    "Triplet CoSENT Matryoshka enable_lora save_lora load_lora InputError",
    "Saving and serving": "export_saved_model load_saved_model "
    "SavedModelHandler push_to_hub "
    "presets",
}


def api():
    """Return the pages of the public names: name of a file -> text."""
    import bert_keras

    pages = {}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first_lines = re.search(r"^```python\n.*?^```\n", readme, re.M | re.S)
    for title, names in API.items():
        rows = []
        for name in names.split():
            target = f"bert_keras.{bert_keras._MODULES[name]}.{name}"
            first, *_ = inspect.getdoc(getattr(bert_keras, name)).splitlines()
            rows.append((f"[`{name}`](#{target})", first))
        parts = [
            f"# {title}\n\nLetters in shapes: B batch size, T tokens of a row, "
            "D hidden size, M masked positions of a row, V vocabulary size, C "
            "classes, K choices.",
            table(("name", ""), rows),
        ]
        if not pages:
            parts.insert(1, first_lines[0])
        for name in names.split():
            parts.append(f"::: bert_keras.{bert_keras._MODULES[name]}.{name}")
        pages[f"api_{title.split()[0].lower()}"] = "\n\n".join(parts) + "\n"
    return pages


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
            "An export of a model has those of these signatures that fit its "
            "labels and options. The first one is the default. Every export "
            "also has `tokenize`. [Serving](serving.md) lists inputs and "
            "outputs.",
            table(("model", "signatures"), signatures),
        ]
    )


def table(columns, rows):
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


SHOWN_TASKS = "multilabel regress spans tags choices embed rank squad2 ner"


def scripts():
    """Return the page with every command's help and table of flags.

    For each task of `SHOWN_TASKS`, a table has the flags of `finetune` that
    are not in the table before.
    """
    from official_tasks.cli import find_commands

    commands = find_commands()
    names = dict.fromkeys(["finetune", *commands])  # what most people need
    parts = [
        "# Scripts and their flags",
        "`bert-keras NAME --help` prints the same. A switch `--name` is turned "
        "off by `--noname`.",
    ]
    for name in names:
        module, _ = commands[name]
        rows = list_flags(module)
        text = read_docstring(module)
        parts += [f"## bert-keras {name}", text, flag_table(rows)]
        for task in SHOWN_TASKS.split() if name == "finetune" else ():
            more = [r for r in list_flags(module, task) if r not in rows]
            parts += [f"### finetune --task={task}", flag_table(more)]
    return "\n\n".join(parts)


def list_flags(module, task=None):
    """Return the flags that `--help` of a script shows, as rows of a table.

    A row has the flag, its default, its range and its meaning.
    """
    from official_tasks import options

    values = flags.FlagValues()
    cls = importlib.import_module(module).Options
    options.define_flags(cls, values)
    if task is not None:
        values["task"].value = task
    groups = options.list_flags(cls, values).values()
    return [_describe(flag) for named in groups for flag in named.values()]


def _describe(flag):
    choices = getattr(flag.parser, "enum_values", ())
    limits = " ".join(f"`{x}`" for x in choices) or flag.parser.syntactic_help
    default = flag.default
    if isinstance(default, list):
        default = ",".join(default)
    has_default = default is not None and default is not False
    # absl writes the values of an enum before its help, and adds a line to that
    # of a repeated flag.
    meaning = flag.help.partition(";\n    repeat this option")[0]
    meaning = re.sub("^<[^>]*>: ", "", " ".join(meaning.split()))
    return (
        f"`--{flag.name}`",
        f"`{default}`" if has_default and default != "" else "",
        "switch" if flag.boolean else limits,
        mark_flags(meaning).replace("|", "\\|"),
    )


def mark_flags(text):
    """Return a text in which each flag is code."""
    return FLAG.sub(r"`\1`", text)


def flag_table(rows):
    """Return the table of a script's flags; site.css keeps a flag in a line."""
    rows = [
        (f'<code class="flag">{flag.strip("`")}</code>', *others)
        for flag, *others in rows
    ]
    return table(("flag", "default", "range", "meaning"), rows)


def read_docstring(module):
    """Return a script's docstring as Markdown."""
    path = importlib.util.find_spec(module).origin
    text = ast.get_docstring(ast.parse(Path(path).read_text(encoding="utf-8")))
    return "\n".join(
        line
        if line.startswith("    ")
        else mark_flags(line).replace("*", "\\*")
        for line in text.split("\n")
    )


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
