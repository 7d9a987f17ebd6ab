"""The licence of weights: what their folder says of it, and its text."""

import dataclasses
import os
import re

from bert_keras import files

STATED = re.compile(r"^license:\s*['\"]?([^\s'\"#]+)", re.MULTILINE)
LICENSE = "LICENSE"  # under which it is written
FILES = (LICENSE, "LICENSE.txt", "LICENSE.md", "COPYING")
MOST = 200_000  # bytes of a file that are read


@dataclasses.dataclass(frozen=True)
class License:
    """A licence's name, such as "apache-2.0", and its text; either or both."""

    name: str | None = None
    text: str | None = None


def license_of(folder):
    """The `License` that a folder of weights states, or None.

    Its name is in the front matter of README.md, as Hugging Face's model
    cards state it: `license: apache-2.0` between two lines of `---`. Its text
    is in one of `FILES`.
    """
    name = _stated(_read(folder, "README.md"))
    text = next(filter(None, (_read(folder, file) for file in FILES)), None)
    return License(name, text) if name or text else None


def write_license(license, folder):
    """Writes the text of a `License`, if there is one, into the folder."""
    if license is not None and license.text:
        path = os.path.join(folder, LICENSE)
        with open(path, "w", encoding="utf-8") as file:
            file.write(license.text)


def _stated(readme):
    if not readme or not readme.startswith("---"):
        return None
    found = STATED.search(readme.partition("---")[2].partition("\n---")[0])
    return found[1] if found else None


def _read(folder, name):
    try:
        path = os.path.join(folder, name)
        with files.open_file(path, inside=folder) as file:
            return file.read(MOST).decode("utf-8", "replace")
    except OSError:
        return None
