"""`python -m effect_broker` is the command line."""

from effect_broker.cli import main

main()
