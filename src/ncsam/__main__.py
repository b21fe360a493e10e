"""`python -m ncsam` is the command `ncsam`."""

from ncsam.cli.main import main

if __name__ == "__main__":
    main(prog_name="python -m ncsam")
