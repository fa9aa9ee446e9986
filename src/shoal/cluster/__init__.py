"""The same experiment on a cluster: actors, learners and evaluators around services, held together by Ray.

Every service is a plain class (`coordinator`, `parameters`, `dataset`, `actor`, `learner`, ...). A `fabric` starts them
and lets them call each other: threads of this process (`fabric.Threads`, for tests) or Ray (`ray_fabric`; only
`ray_join` imports it). The classic architectures are `recipes` over them.
"""
