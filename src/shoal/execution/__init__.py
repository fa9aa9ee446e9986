"""Runners: they scan, drive or distribute the same `init / act / update`."""
