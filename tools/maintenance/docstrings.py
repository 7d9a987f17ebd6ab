"""Extension of griffe for the examples in docstrings; see mkdocs.yml."""

import re

import griffe

DOCTEST = re.compile(r"^Example:\n(?=>>> )(.*?)(?=\n\n|\Z)", re.M | re.S)


class Docstrings(griffe.Extension):
    """Extension that turns "Example:" and a doctest into a section Examples."""

    def on_package(self, *, pkg, **kwargs):
        for function in _functions_and_classes(pkg):
            if function.docstring is not None:
                text = function.docstring.value
                function.docstring.value = DOCTEST.sub(_as_section, text)


def _as_section(match):
    return "Examples:\n" + re.sub("^", "    ", match[1], flags=re.M)


def _functions_and_classes(parent):
    for member in parent.members.values():
        if member.is_alias:
            continue
        if member.is_module or member.is_class:
            yield from _functions_and_classes(member)
        if member.is_class or member.is_function:
            yield member
