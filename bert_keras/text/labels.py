"""Labels of words, such as B-LOC, with a prefix of IOB, BIOES or BILOU."""

OUTSIDE = "O"
PREFIXES = "BIESLU"
BEGIN, END = "BSU", "ELSU"  # label prefixes of an entity's first and last word


def split_label(label: str) -> tuple[str, str]:
    """Return a label's prefix and type, such as "B" and "LOC" for "B-LOC".

    A label without a prefix gets "I". For "O", the result is "O" and "".
    """
    if label[1:2] == "-" and label[0] in PREFIXES:
        return label[0], label[2:]
    return (OUTSIDE, "") if label == OUTSIDE else ("I", label)


def is_full_label(label: str) -> bool:
    """Return True for O and PREFIX-TYPE."""
    return label == OUTSIDE or split_label(label)[1] != label
