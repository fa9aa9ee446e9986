"""All presets, printed as JSON: `python -P -m shoal.ui.preset_settings`.

Presets are built from classes that need JAX, which the server never imports: it runs this in another process, once,
when someone first asks. Nothing that a run folder says is handed to it.
"""

import json
import sys


def main() -> None:
    """Prints name, environment and settings of each preset."""
    from shoal import presets

    made = {name: presets.get(name) for name in presets.names()}
    found = [{"name": name, "env": one.env, "experiment": one.to_dict()} for name, one in made.items()]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
