"""`python -m aiops` is the command `aiops`: the one place that imports upwards."""

from aiops_cli.main import main

if __name__ == "__main__":
    main()
