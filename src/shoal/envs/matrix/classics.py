"""The best known games of two players and one table: each shows one thing that can happen when several learn.

| world | actions | payoffs of player 0 | what it is about |
|---|---|---|---|
| `matrix/rock_paper_scissors` | rock, paper, scissors | ((0, -1, 1), (1, 0, -1), (-1, 1, 0)) | only mixing cannot be exploited; learners go round in circles |
| `matrix/matching_pennies` | heads, tails | ((1, -1), (-1, 1)) | the same with two actions: player 0 wants to match, player 1 to differ |
| `matrix/prisoners_dilemma` | cooperate, defect | ((5, 0), (10, 1)) | defecting is better whatever the other does, and worse for both |
| `matrix/iterated_prisoners_dilemma` | cooperate, defect | ((5, 0), (10, 1)) | played 100 times: what one does can be answered, so cooperation can pay |
| `matrix/stag_hunt` | stag, hare | ((2, 0), (1, 1)) | two equilibria: the better one needs trust |

The first two are zero-sum, the others symmetric: player 1 gets what player 0 would get in its place.

**Rules.** Both choose at once, and the table says what each of them gets. These are cases of `matrix/game`: all of them
take its options `payoffs` (one's own numbers under the same names) and `num_rounds`.

**Actions.** Those of the table, in its order.

**Observation** of each player. In a game that is played once, one value, always 1. In a repeated one: 1 in the first
round, then 0; own action in the last round, one-hot; the other's, one-hot.

**Reward.** Each player's payoff, in every round. The logs show, under each action's name, the share of the players that
chose it.

**End.** Terminated after one round; repeated games are truncated after `num_rounds`.

**Source.** Textbook; the payoffs are those of OpenSpiel's `matrix_rps`, `matrix_mp`, `matrix_pd` and `matrix_sh`.
Version 1.
"""  # noqa: E501

import dataclasses
from typing import Any, ClassVar

from shoal.envs.matrix.game import MatrixGame

_DILEMMA = (((5.0, 0.0), (10.0, 1.0)), ((5.0, 10.0), (0.0, 1.0)))


@dataclasses.dataclass(frozen=True)
class RockPaperScissors(MatrixGame):
    """Rock beats scissors, scissors beat paper, paper beats rock."""

    payoffs: tuple[Any, ...] = ((0.0, -1.0, 1.0), (1.0, 0.0, -1.0), (-1.0, 1.0, 0.0))  # what player 0 wins

    kind: ClassVar[str] = "competitive"
    id: ClassVar[str] = "matrix/rock_paper_scissors"
    moves: ClassVar[tuple[str, ...]] = ("rock", "paper", "scissors")


@dataclasses.dataclass(frozen=True)
class MatchingPennies(MatrixGame):
    """Player 0 wants both coins to show the same side, player 1 different ones."""

    payoffs: tuple[Any, ...] = ((1.0, -1.0), (-1.0, 1.0))  # what player 0 wins

    kind: ClassVar[str] = "competitive"
    id: ClassVar[str] = "matrix/matching_pennies"
    moves: ClassVar[tuple[str, ...]] = ("heads", "tails")


@dataclasses.dataclass(frozen=True)
class PrisonersDilemma(MatrixGame):
    """Each is better off defecting, and both are worse off if they do."""

    payoffs: tuple[Any, ...] = _DILEMMA  # [players, actions of player 0, actions of player 1]

    id: ClassVar[str] = "matrix/prisoners_dilemma"
    moves: ClassVar[tuple[str, ...]] = ("cooperate", "defect")


@dataclasses.dataclass(frozen=True)
class IteratedPrisonersDilemma(PrisonersDilemma):
    """The prisoner's dilemma again and again, with memory of the last round."""

    num_rounds: int = 100  # how often the game is played in an episode

    id: ClassVar[str] = "matrix/iterated_prisoners_dilemma"


@dataclasses.dataclass(frozen=True)
class StagHunt(MatrixGame):
    """A stag takes two; a hare is certain."""

    payoffs: tuple[Any, ...] = (((2.0, 0.0), (1.0, 1.0)), ((2.0, 1.0), (0.0, 1.0)))  # [players, actions, actions]

    id: ClassVar[str] = "matrix/stag_hunt"
    moves: ClassVar[tuple[str, ...]] = ("stag", "hare")
