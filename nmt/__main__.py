"""`python -m nmt`, the same as `nmt`; torchrun starts it so."""

from nmt.cli import main

if __name__ == "__main__":
    main()
