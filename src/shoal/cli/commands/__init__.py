"""The subcommands of shoal, one file each."""
