"""Readers and writers of weights formats; no file's code is ever run."""
