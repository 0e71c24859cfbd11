"""python -m zonogpt"""

from zonogpt.cli.app import main

main()
