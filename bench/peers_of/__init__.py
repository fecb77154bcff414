"""Peers of the broker, each as its own documentation says to use it: one file for each.

The files of peers are programs that run in an environment of their own (`installation`), by the
protocol of `program`; `processes` is the benchmark's end of it, and `fates` what a kill has shown.
"""
