"""Environments and learners of other libraries, here and there: the only place that imports them.

Other libraries' environments in Shoal: `shoal.make("gymnasium:CartPole-v1")`, `pettingzoo:`, `openspiel:`, `dm_env:`,
`vmas:`, `jaxmarl:`, `jumanji:` and `gymnax:` name their environments; each is a module of `incoming` with a function
`make`.

Shoal's environments in other libraries: `env.to_pettingzoo()`, and the modules of `outgoing`: `pettingzoo`,
`gymnasium`, `dm_env`, `torchrl` and `openspiel`. `torch` hands batched worlds over to PyTorch without a copy,
`numpy_policy` turns a trained policy into plain numpy, `onnx_policy` and `js_policy` that into ONNX or a page.

Nothing is imported here, so that `import shoal` needs none of those libraries.
"""
