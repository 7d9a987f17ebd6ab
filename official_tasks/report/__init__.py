"""Pages about runs: figures, charts, examples."""
