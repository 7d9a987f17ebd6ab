"""What the BERT paper did, as commands: python -m official_tasks.finetune."""
