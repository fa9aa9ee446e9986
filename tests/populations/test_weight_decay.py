"""What OpenAI-ES forgets when nothing is learnt."""

import jax
import jax.numpy as jnp
import numpy as np

from shoal.populations.evolution.strategies import OpenES


def test_weights_fade_where_all_members_are_as_fit():
    strategy = OpenES(learning_rate=0.1, weight_decay=0.5)
    state = strategy.init(jax.random.key(0), lambda key: jnp.array([2.0, -4.0]), 4, 1)
    members, state = strategy.ask(jax.random.key(1), state, 4)
    state = strategy.tell(jax.random.key(2), members, jnp.ones(4), state)
    np.testing.assert_allclose(strategy.centre(state), 0.95 * np.array([2.0, -4.0]), rtol=1e-6)
