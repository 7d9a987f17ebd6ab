"""Checks that the tables of figures in README and docs are those on record.

    python tools/maintenance/figures.py
    python tools/maintenance/figures.py --stale
    python tools/maintenance/figures.py --write

In: docs/figures.json, which has each table's rows with the command, commit,
processor and date that they come from (null: unknown), and the folders whose
change makes them old; and the pages. Out: what differs, exit code 1; with
--stale the tables that are older than the last change of those folders, and
those of unknown origin; with --write the pages get the rows on record, with
--read the record those of the pages. Takes a second.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

from absl import flags

from official_tasks import script

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD = "docs/figures.json"
ORIGIN = ("command", "commit", "processor", "date")


def define_flags():
    flags.DEFINE_bool("stale", False, "List figures older than their code.")
    flags.DEFINE_bool("write", False, "Write the rows on record to the pages.")
    flags.DEFINE_bool("read", False, "Take the pages' rows into the record.")
    flags.mark_bool_flags_as_mutual_exclusive(["stale", "write", "read"])


def tables_of(text: str) -> dict[tuple[str, int], str]:
    """(header line, which of those with this header) -> the lines below."""
    found: dict[tuple[str, int], str] = {}
    pattern = r"^(\|.*\|)\n(\|[-| ]+\|\n(?:\|.*\|\n?)*)"
    for header, body in re.findall(pattern, text, re.MULTILINE):
        number = sum(header == other for other, _ in found)
        found[header, number] = body.rstrip("\n")
    return found


def has_figures(body: str) -> bool:
    """Whether most cells beyond the first column begin with a digit."""
    rows = [re.split(r" *\| *", line)[2:-1] for line in body.split("\n")[1:]]
    cells = [cell for row in rows for cell in row if cell]
    digits = [cell for cell in cells if re.match(r"[*-]*\d", cell)]
    return 2 * len(digits) > len(cells)


def render(entry: dict) -> str:
    """A table's lines below its header."""
    rule = "|" + "---|" * (entry["header"].count("|") - 1)
    return "\n".join([rule, *entry["rows"]])


def place(entry: dict) -> tuple[str, int]:
    return entry["header"], entry.get("number", 0)


def name(entry: dict) -> str:
    return f"{entry['page']}, table `{entry['header']}`"


def differences(record: dict, root: Path) -> list[str]:
    """What is on record otherwise than in the pages, or not at all."""
    found, known = [], set()
    for entry in record["tables"]:
        pages = tables_of((root / entry["page"]).read_text(encoding="utf-8"))
        known.add((entry["page"], *place(entry)))
        if place(entry) not in pages:
            found.append(f"{name(entry)} is not there")
        elif pages[place(entry)] != render(entry):
            found.append(f"{name(entry)} has other rows than {RECORD}")
    known |= {(page, header, 0) for page, header in record["no_figures"]}
    for path in [root / "README.md", *sorted(root.glob("docs/*.md"))]:
        page = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        for (header, number), body in tables_of(text).items():
            if has_figures(body) and (page, header, number) not in known:
                found.append(f"{page}, table `{header}` is not on record")
    return found


def later_changes(entry: dict, root: Path) -> list[str]:
    done = subprocess.run(
        ["git", "rev-list", "--count", f"{entry['commit']}..HEAD", "--"]
        + entry["depends"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    if done.returncode:  # a shallow copy, or history that was rewritten
        return [f"{name(entry)}: commit {entry['commit']} is not known here"]
    changes, folders = int(done.stdout), ", ".join(entry["depends"])
    if not changes:
        return []
    since = f"{changes} changes of {folders} since {entry['commit']}"
    return [f"{name(entry)}: {since}"]


def stale(record: dict, root: Path) -> list[str]:
    """A line for each table that is older than its code, or of no origin."""
    found = []
    for entry in record["tables"]:
        missing = [field for field in ORIGIN if not entry[field]]
        if missing:
            found.append(f"{name(entry)}: unknown {', '.join(missing)}")
        if entry["commit"]:
            found += later_changes(entry, root)
    return found


def copy_rows(record: dict, root: Path, to_pages: bool):
    """Makes pages and record equal."""
    for entry in record["tables"]:
        path = root / entry["page"]
        text = path.read_text(encoding="utf-8")
        body = tables_of(text)[place(entry)]
        if to_pages:
            parts = text.split(f"\n{entry['header']}\n")
            number = place(entry)[1] + 1
            parts[number] = parts[number].replace(body, render(entry), 1)
            text = f"\n{entry['header']}\n".join(parts)
            path.write_text(text, encoding="utf-8")
        else:
            entry["rows"] = body.split("\n")[1:]
    text = json.dumps(record, indent=1, ensure_ascii=False)
    (root / RECORD).write_text(text + "\n", encoding="utf-8")


def main(values):
    record = json.loads((ROOT / RECORD).read_text(encoding="utf-8"))
    if values.write or values.read:
        copy_rows(record, ROOT, values.write)
    lines = stale(record, ROOT) if values.stale else differences(record, ROOT)
    print("\n".join(lines) or "Every figure is as it should be.")
    sys.exit(bool(lines) and not values.stale)


if __name__ == "__main__":
    script.start(main, define_flags, tensorflow=False)
