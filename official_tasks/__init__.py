"""Commands for the steps of the BERT paper, such as bert-keras finetune."""

from official_tasks import stopping

# Do this before a script's imports: they take seconds, and loggers keep the
# standard error of this moment.
if stopping.is_script():
    stopping.open_streams()
    stopping.install()
