"""Integrations that frameworks load themselves, because their configuration names them: one module per framework, with
a half for the rollout and one for the trainer. `trainer_plugin/README.md` has the configuration of each.

Importing this package imports no framework. Importing a module without its framework is an ImportError that names it.

Settings for which frameworks have no options are environment variables of all processes of the job, in the same README.
"""
