"""Text that UTF-8 can hold: no halves of surrogate pairs."""


def encodable(value):
    """A string without them, or a list or tuple of such, of any depth.

    JSON can spell them, and neither a file nor a tensor can hold them. As the
    tokenizer drops bytes that are not UTF-8. What is no text stays as it is.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "ignore").decode("utf-8")
    if isinstance(value, list | tuple):
        return type(value)(map(encodable, value))
    return value
