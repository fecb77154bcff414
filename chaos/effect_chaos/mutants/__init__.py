"""The mutation check: bugs planted one by one into the core, each of which the tests must catch.

It owns the whole way from the source to the figures, in parts: `plan` says what is mutated and
which tests must notice, `mutations` makes the mutants (with cosmic-ray's operators), `stage` keeps
copies of the checkout and the fork servers, `lane` and `trial` run tests over one mutant in a
forked child, `session` remembers every result, `equivalents` knows the mutants that are no bugs,
`report` counts. Nothing in the checkout is ever changed but the session's own folder.
"""
