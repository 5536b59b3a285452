"""`python -m nmt`, the same as `nmt`, for torchrun."""

from nmt.cli import main

if __name__ == "__main__":
    main()
