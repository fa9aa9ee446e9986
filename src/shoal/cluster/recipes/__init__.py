"""The architectures by name. Each is a short file that says which workers there are and what they exchange."""

from shoal.cluster.recipes import a3c, apex, appo, ddppo, gorila, impala, r2d2, seed, stale, synchronous
from shoal.cluster.recipes._recipe import Recipe
from shoal.core.errors import unknown_name

RECIPES: dict[str, Recipe] = {
    module.RECIPE.name: module.RECIPE
    for module in (
        synchronous,
        stale,
        impala,
        appo,
        seed,
        ddppo,
        apex,
        r2d2,
        gorila,
        a3c,
    )
}


def recipe_of(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]
