"""The presets of an environment, printed as JSON: `python -m shoal.ui.preset_settings mpe/simple_spread`.

Presets are built from classes that need JAX, which the server never imports: it runs this in another process, once per
environment that someone asks about.
"""

import json
import sys


def main() -> None:
    """Prints name and settings of each preset."""
    from shoal import presets

    made = {name: presets.get(name) for name in presets.names()}
    found = [{"name": name, "experiment": one.to_dict()} for name, one in made.items() if one.env == sys.argv[1]]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
