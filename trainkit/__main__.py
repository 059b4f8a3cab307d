"""`python -m trainkit`"""

from trainkit.cli import program

program()
