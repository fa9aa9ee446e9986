"""The Python API: everything that the command line does is one call of `shoal`.

`targets` makes an experiment of a name and overrides, `calls` has the calls, `run` and `population` what they return.
"""
