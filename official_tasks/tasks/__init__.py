"""The tasks: files in, rows of ids, scores and official files out."""
