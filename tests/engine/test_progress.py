"""Bars and lines on the terminal."""

from official_tasks import progress


def test_text_of_the_user_is_shown_as_it_is(capsys):
    progress.console.print("note: [/b] and [red]")
    with progress.bar("Reading [/b]") as update:
        update(1, 2, note="[red]")
    told = capsys.readouterr().out
    assert "note: [/b] and [red]" in told
    assert "Reading [/b]" in told and told.rstrip().endswith("[red]")
