"""Thin commands, file in, file out; installed as `official_tasks.tools`."""
