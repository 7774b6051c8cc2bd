"""The command line of aiops: one module per command, no logic of its own."""
