"""Windows: panes, and what each of them holds."""
