"""Commands from files to files; installed as `official_tasks.tools`."""
