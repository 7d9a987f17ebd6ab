"""Leave out the rows of Prodigy that a reviewer did not accept.

Prodigy writes "accept", "reject" or "ignore" as the "answer" of each row. Rows
of other tools, without an answer, may stand beside them.
"""

from bert_keras.errors import format_count
from official_tasks.tasks.forms.cells import show_id, to_text

ANSWER = "answer"


def leave_out_rejected(path, rows, notes):
    """Yield (number, cells) of the accepted rows, without the answers.

    If a row has another answer, the column means something else, and all rows
    are yielded.

    Args:
        path: the file, for notes.
        rows: iterable of (number, cells). The last cell is the answer. A str in
            place of the cells is a message, which is yielded unchanged.
        notes: list to which a note is added; None for no notes.
    """
    held: list = []  # the first rejected row and all rows after it
    is_review = True
    for number, cells in rows:
        answer = ""
        if not isinstance(cells, str):
            *cells, answer = cells
            answer = to_text(path, ANSWER, show_id(answer))
        if is_review and answer not in ("accept", "reject", "ignore", ""):
            is_review = False
            yield from (row for row, _ in held)
            held = []
        is_out = answer in ("reject", "ignore")
        if is_review and (held or is_out):
            held.append(((number, cells), is_out))
        else:
            yield number, cells
    yield from (row for row, is_out in held if not is_out)
    count = sum(is_out for _, is_out in held)
    if count and notes is not None:
        notes.append(
            f"{path}: {format_count(count, 'row')} left out, with 'reject' or "
            "'ignore' as 'answer'"
        )
