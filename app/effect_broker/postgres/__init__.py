"""Getting a Postgres: one that is given, an embedded one, local binaries, or a container.

* `choice`: which of them, in which order, and what to say when there is none
* `embedded`: the server that a project keeps for itself;  `binaries`, `locks`, `account`,
  `socket`: its parts
* `container`: a server in a container, where an engine answers
"""
