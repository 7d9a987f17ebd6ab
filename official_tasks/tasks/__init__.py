"""Tasks that read files, encode rows, score and write predictions."""
