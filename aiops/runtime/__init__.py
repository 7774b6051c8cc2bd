"""The shells: they move bytes, keep timers and carry out what the cores in `aiops.roles` decide."""
