"""What the BERT paper did, as commands: python -m official_tasks.finetune."""

from official_tasks import stopping

# Before the imports of a script, which take seconds.
if stopping.is_program():
    stopping.install()
