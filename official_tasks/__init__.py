"""Commands for the steps of the BERT paper, such as official_tasks.finetune."""

from official_tasks import stopping

# Handle signals before a script's imports, which take seconds.
if stopping.is_program():
    stopping.install()
