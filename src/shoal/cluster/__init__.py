"""The same experiment on a cluster: actors, learners and evaluators around services, held together by Ray.

Every service is a plain class (`coordinator`, `parameters`, `dataset`, `actor`, `learner`, ...), which others call
through a typed `Service[T]`. A `Launcher` starts them: as threads of this process (`ThreadLauncher`, for tests) or on
Ray (`RayLauncher`; only `ray_join` imports it). A `Supervisor` watches over them. The classic architectures are
`recipes` over them.
"""
