"""Integrations that frameworks load themselves, because their configuration names them: one module per framework, with
a half for the rollout and one for the trainer. `trainer_plugin/README.md` has the configuration of each.

Importing this package imports no framework. Importing a module without its framework is an ImportError that names it.

Environment variables of all processes of the job hold the settings for which frameworks have no options:

    ROUTING_REPLAY_ENDPOINT      where the service is; routing_replay.Client reads other variables, too
    ROUTING_REPLAY_TRAINING_RUN  the run's name, instead of the experiment's name
    ROUTING_REPLAY_TTL           seconds after which an idle sample is removed, for the process that makes the run
    ROUTING_REPLAY_METRICS       anything: after each training pass each rank prints what it has replayed, as JSON
    ROUTING_REPLAY_MODE          mode of `megatron.attach`: R3 if absent; shadow compares and changes nothing
"""
