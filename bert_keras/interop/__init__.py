"""Readers and writers of weights formats. They never run code from a file."""
