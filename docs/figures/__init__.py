"""Figures of the README and of the docs, each made from JSON by a function of its name: see `build_figures`."""
