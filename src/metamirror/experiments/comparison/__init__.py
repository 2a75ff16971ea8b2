"""Methods side by side: the same tasks, the same budget, one table."""
