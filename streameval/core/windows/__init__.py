"""Windows: `panes` of rows, the `aggregates` that they hold, the `cells` that rows belong to."""
