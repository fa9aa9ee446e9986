"""Records a match of a population as a page: `python -P -m shoal.ui.match_page RUN FILE SEED POLICY...`.

The server runs this in another process, since policies are played by JAX, which it never imports.
"""

import sys
from pathlib import Path

from shoal.core.errors import ShoalError


def main() -> None:
    """Writes the page of an episode of these policies, one number per player, or says why there is none."""
    folder, target, seed, *lineup = sys.argv[1:]
    from shoal.api.lineup_page import lineup_page

    try:
        page = lineup_page(Path(folder), [int(number) for number in lineup], int(seed))
    except ShoalError as error:
        sys.exit(str(error))
    Path(target).write_bytes(page)


if __name__ == "__main__":
    main()
