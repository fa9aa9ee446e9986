"""Leagues on the devices: all roles of all players are trained side by side, each against opponents of its own."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core import trees
from shoal.core.types import PyTree
from shoal.populations import league, psro
from shoal.populations.oracles import Learned
from shoal.populations.responses import Given


@dataclasses.dataclass
class League(Learned):
    """Snapshots of the roles that an iteration trains. The mixture of a league is its newest main agents."""

    exploit_every: int = dataclasses.field(default=1, kw_only=True)  # 1: all roles in every iteration

    def respond(self, state: psro.State) -> Mapping[str, list[psro.Response]]:
        capacity = max(bank.capacity for bank in state.banks.values())
        number = state.iteration + 1
        roles = league.trained(number, self.exploit_every)
        meets, ages = {}, {}
        for player in state.learning:
            meets[player], ages[player] = self._meets(state, player, roles)
        given = Given(
            banks={player: bank.policies for player, bank in state.banks.items()},
            meets=meets,
            seeds=jnp.arange(len(roles), dtype=jnp.uint32) * 100 + self.game.experiment.seed + 1000 * number,
            starts={player: self._starts(state, player, roles, ages[player]) for player in state.learning},
            warm=jnp.ones(len(roles), bool),
        )
        policies, earned = self.train(capacity, given)
        return {
            player: self._news(state, player, roles, policies[player], earned[player], ages[player])
            for player in policies
        }

    def mix(self, state: psro.State) -> list[np.ndarray]:
        """All weight on the newest mains."""
        return [np.eye(len(bank))[league.newest(bank, league.ROLES[0])] for bank in state.banks.values()]

    def _meets(self, state: psro.State, player: str, roles: tuple[str, ...]) -> tuple[dict[str, jax.Array], list[int]]:
        """Whom each role of a player meets, and how long each has been trained on since it began."""
        own, me = state.banks[player], state.players.index(player)
        payoff = state.table.mean[me]
        low, high = float(payoff.min()), float(payoff.max())
        rows: dict[str, list[np.ndarray]] = {other: [] for other in state.players if other != player}
        ages = []
        for role in roles:
            index = league.newest(own, role)
            member = own.members[index]
            age = member.info.get("age", 0) if league.role_of(member) == role else 0
            share = []
            for other, bank in state.banks.items():
                if other == player:
                    continue
                won = league.share_won(self._against(payoff, me, index, state.players.index(other), state), low, high)
                chances = league.opponents(role, won, bank)
                share.append(float(won @ chances))
                rows[other].append(np.asarray(bank.mixture(chances)))
            ages.append(0 if league.begins_anew(role, float(np.mean(share)), age) else age + 1)
        return {other: jnp.asarray(np.stack(row), jnp.float32) for other, row in rows.items()}, ages

    def _against(self, payoff: np.ndarray, me: int, index: int, other: int, state: psro.State) -> np.ndarray:
        """What a policy earns against each policy of another player, everybody else playing their newest main."""
        rest = [
            index if p == me else slice(None) if p == other else league.newest(bank, league.ROLES[0])
            for p, bank in enumerate(state.banks.values())
        ]
        return payoff[tuple(rest)]

    def _starts(self, state: psro.State, player: str, roles: tuple[str, ...], ages: list[int]):
        """Each role goes on from its newest snapshot; who begins anew, and whoever has none, from the first policy."""
        bank = state.banks[player]
        chosen = [
            bank[0]
            if age == 0 or league.role_of(bank.members[league.newest(bank, role)]) != role
            else bank[league.newest(bank, role)]
            for role, age in zip(roles, ages, strict=True)
        ]
        return trees.stack(chosen)

    def _news(
        self,
        state: psro.State,
        player: str,
        roles: tuple[str, ...],
        policies: PyTree,
        earned: np.ndarray,
        ages: list[int],
    ) -> list[psro.Response]:
        bank, news = state.banks[player], []
        for lane, role in enumerate(roles):
            policy = jax.tree.map(lambda leaf, lane=lane: leaf[lane], policies)
            parent = league.newest(bank, role)
            begun = ages[lane] == 0 or league.role_of(bank.members[parent]) != role
            info = {"role": role, "age": ages[lane], "earned": float(earned[lane])}
            news.append(psro.Response(policy, info, parent=0 if begun else parent))
        return news
