"""The licence that a model folder states of its weights."""

import os
import re

STATED = re.compile(r"^license:\s*['\"]?([^\s'\"#]+)", re.MULTILINE)


def license_of(folder):
    """What the front matter of its README.md says, or None.

    Hugging Face's model cards state it so: `license: apache-2.0` between two
    lines of `---`.
    """
    try:
        path = os.path.join(folder, "README.md")
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(100_000)
    except OSError:
        return None
    if not text.startswith("---"):
        return None
    found = STATED.search(text.partition("---")[2].partition("\n---")[0])
    return found[1] if found else None
