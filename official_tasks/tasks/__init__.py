"""The tasks: they read files, encode rows, score and write predictions."""
