"""``python -m logboom``."""

from logboom.cli import main

if __name__ == "__main__":
    main()
