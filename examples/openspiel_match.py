"""A Shoal policy, a PyTorch network and a scripted bot play three-handed Kuhn poker: one game of OpenSpiel's.

The Shoal policy has trained on `openspiel:kuhn_poker(players=3)` for a few seconds, the network could come from
anywhere. Each becomes a `pyspiel.Bot`, and they change seats after every third of the games.
"""

import numpy as np
import pyspiel
import torch

from shoal.algorithms import PPO
from shoal.bridges.incoming.openspiel import bot, policy_bot
from shoal.training.experiment import Experiment, Learner
from shoal.training.runner import run

GAME = "kuhn_poker(players=3)"
HANDS = slice(3, 7)  # in a view: which of the four cards one has


class Net(torch.nn.Module):  # it has not learnt anything yet
    layers = torch.nn.Sequential(torch.nn.LazyLinear(32), torch.nn.Tanh(), torch.nn.Linear(32, 2))

    @torch.no_grad()
    def forward(self, view, legal):
        logits = self.layers(torch.from_numpy(view)).masked_fill(~torch.from_numpy(legal), -1e9)
        return logits.softmax(-1).numpy()


def cautious(view, legal):
    """Bets and calls with the two best cards, passes with the others."""
    return np.eye(2)[int(np.argmax(view[HANDS]) >= 2)]


def main(total_env_steps=60_000, num_games=3000):
    torch.manual_seed(0)
    learner = Learner(PPO(learning_rate=1e-3, entropy_coef=0.02))
    sizes = {"num_envs": 64, "num_steps": 32, "total_env_steps": total_env_steps}
    experiment = Experiment(f"openspiel:{GAME}", learners={"learner": learner}, **sizes)
    policy, algorithm = run(experiment).policies["player"], experiment.setup.algorithms["player"]
    game, net = pyspiel.load_game(GAME), Net()
    makers = {
        "Shoal policy": lambda seat: policy_bot(game, seat, algorithm, policy, seed=seat),
        "PyTorch network": lambda seat: bot(game, seat, net, seed=seat),
        "scripted bot": lambda seat: bot(game, seat, cautious, seed=seat),
    }
    names, each, table = list(makers), num_games // 3, np.zeros((3, 3))  # [participant, seat]: mean winnings
    for turn in range(3):
        who = [(seat - turn) % 3 for seat in range(3)]
        bots = [makers[names[one]](seat) for seat, one in enumerate(who)]
        won = [pyspiel.evaluate_bots(game.new_initial_state(), bots, turn * each + i) for i in range(each)]
        table[who, range(3)] = np.mean(won, axis=0)
    print(f"{'chips a game':16} " + " ".join(f"{f'seat {seat}':>8}" for seat in range(3)) + f" {'mean':>8}")
    for name, row in zip(names, table, strict=True):
        print(f"{name:16} " + " ".join(f"{value:8.3f}" for value in [*row, row.mean()]))
    return dict(zip(names, table.mean(axis=1).tolist(), strict=True))


if __name__ == "__main__":
    main()
