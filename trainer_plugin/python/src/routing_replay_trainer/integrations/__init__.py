"""Integrations that frameworks load themselves, because their configuration names them: one module per framework, with
a half for the rollout and one for the trainer. `trainer_plugin/README.md` has the configuration of each.

Importing this package imports no framework. Importing a module without its framework is an ImportError that names it.

Settings for which a framework has no option are environment variables, to be set for all processes of the job; the same
README lists them.
"""
