"""`python -m trainkit`"""

from trainkit.entry import program

program()
