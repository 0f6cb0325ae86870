"""`python -m controller.cli` is mlxctl."""

from controller.cli.main import main

if __name__ == "__main__":
    main()
