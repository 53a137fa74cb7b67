"""`python -m pairloc` does what `pairloc` does."""

from pairloc.cli import main

if __name__ == "__main__":
    main()
