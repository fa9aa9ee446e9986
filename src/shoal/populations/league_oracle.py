"""The league oracle: all roles of all players are trained in parallel, each against its own opponents."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core import trees
from shoal.core.types import PyTree
from shoal.populations import league, psro
from shoal.populations.oracles import LearnedOracle
from shoal.populations.responses import TrainingInputs


@dataclasses.dataclass
class LeagueOracle(LearnedOracle):
    """Snapshots of the roles that an iteration trains. The mixture of a league is its newest main agents."""

    exploit_every: int = dataclasses.field(default=1, kw_only=True)  # 1: all roles in every iteration

    def respond(self, state: psro.PSROState) -> Mapping[str, list[psro.Response]]:
        capacity = max(bank.capacity for bank in state.banks.values())
        number = state.iteration + 1
        roles = league.trained_roles(number, self.exploit_every)
        opponent_mixtures, ages = {}, {}
        for player in state.learning:
            opponent_mixtures[player], ages[player] = self._opponent_mixtures(state, player, roles)
        inputs = TrainingInputs(
            banks={player: bank.policies for player, bank in state.banks.items()},
            opponent_mixtures=opponent_mixtures,
            seeds=jnp.arange(len(roles), dtype=jnp.uint32) * 100 + self.game.experiment.seed + 1000 * number,
            initial_policies={
                player: self._initial_policies(state, player, roles, ages[player]) for player in state.learning
            },
            warm_start=jnp.ones(len(roles), bool),
        )
        policies, earned = self.train(capacity, inputs)
        return {
            player: self._responses_of(state, player, roles, policies[player], earned[player], ages[player])
            for player in policies
        }

    def mix(self, state: psro.PSROState) -> list[np.ndarray]:
        """All weight on the newest mains."""
        return [np.eye(len(bank))[league.newest(bank, league.ROLES[0])] for bank in state.banks.values()]

    def _opponent_mixtures(
        self, state: psro.PSROState, player: str, roles: tuple[str, ...]
    ) -> tuple[dict[str, jax.Array], list[int]]:
        """The opponent mixtures of each role of a player, and iterations since each role restarted."""
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
                won = league.win_rate(self._against(payoff, me, index, state.players.index(other), state), low, high)
                probabilities = league.opponents(role, won, bank)
                share.append(float(won @ probabilities))
                rows[other].append(np.asarray(bank.mixture(probabilities)))
            ages.append(0 if league.restarts_from_scratch(role, float(np.mean(share)), age) else age + 1)
        return {other: jnp.asarray(np.stack(row), jnp.float32) for other, row in rows.items()}, ages

    def _against(self, payoff: np.ndarray, me: int, index: int, other: int, state: psro.PSROState) -> np.ndarray:
        """A policy's returns against each policy of another player, all others playing their newest main."""
        rest = [
            index if p == me else slice(None) if p == other else league.newest(bank, league.ROLES[0])
            for p, bank in enumerate(state.banks.values())
        ]
        return payoff[tuple(rest)]

    def _initial_policies(self, state: psro.PSROState, player: str, roles: tuple[str, ...], ages: list[int]):
        """The newest snapshot of each role; the first policy for roles that restart or have none."""
        bank = state.banks[player]
        chosen = [
            bank[0]
            if age == 0 or league.role_of(bank.members[league.newest(bank, role)]) != role
            else bank[league.newest(bank, role)]
            for role, age in zip(roles, ages, strict=True)
        ]
        return trees.stack(chosen)

    def _responses_of(
        self,
        state: psro.PSROState,
        player: str,
        roles: tuple[str, ...],
        policies: PyTree,
        earned: np.ndarray,
        ages: list[int],
    ) -> list[psro.Response]:
        bank, news = state.banks[player], []
        for row, role in enumerate(roles):
            policy = jax.tree.map(lambda leaf, row=row: leaf[row], policies)
            parent = league.newest(bank, role)
            begun = ages[row] == 0 or league.role_of(bank.members[parent]) != role
            info = {"role": role, "age": ages[row], "earned": float(earned[row])}
            news.append(psro.Response(policy, info, parent=0 if begun else parent))
        return news
