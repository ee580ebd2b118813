"""Integrations that frameworks load themselves, because their configuration names them: one module or package per
framework, with a half for the rollout and one for the trainer. `trainer_plugin/README.md` shows how to configure each.

Importing this package imports no framework. A module whose framework is not installed raises ImportError that names it.

Settings for which a framework has no option are environment variables, to be set for all processes of the job; the same
README lists them.
"""
