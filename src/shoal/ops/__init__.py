"""Pure functions on arrays: returns, distributions, running statistics, nearest neighbours. No state, no worlds."""

from shoal.ops.distributions import Categorical as Categorical
from shoal.ops.distributions import Distribution as Distribution
from shoal.ops.distributions import Gaussian as Gaussian
from shoal.ops.distributions import MultiCategorical as MultiCategorical
from shoal.ops.distributions import TanhGaussian as TanhGaussian
from shoal.ops.distributions import distribution as distribution
from shoal.ops.distributions import num_parameters as num_parameters
from shoal.ops.neighbours import k_nearest as k_nearest
from shoal.ops.normalisation import RunningStats as RunningStats
from shoal.ops.returns import advantages as advantages
from shoal.ops.returns import lambda_returns as lambda_returns
from shoal.ops.returns import n_step_returns as n_step_returns
from shoal.ops.returns import vtrace as vtrace
