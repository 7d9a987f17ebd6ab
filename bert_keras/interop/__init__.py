"""Readers and writers of weight formats. No reader runs code from a file."""
