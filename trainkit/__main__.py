"""`python -m trainkit`"""

from trainkit.cli import main

main()
