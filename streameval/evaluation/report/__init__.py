"""Reports of figures: terminal, charts, HTML."""
