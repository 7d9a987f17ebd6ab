"""Commands that read and write files; installed as `official_tasks.tools`."""
