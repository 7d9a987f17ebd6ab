"""Commands beside training: export, serve, publish and others.

Installed as `official_tasks.tools`.
"""
