"""`python -m hetero` is the command `hetero`."""

from hetero.cli.main import entry

if __name__ == "__main__":
    entry()
