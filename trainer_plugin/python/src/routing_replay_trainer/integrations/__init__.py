"""Integrations that frameworks load themselves, named in their own configuration: one module per framework, with the
rollout's half and the trainer's. `trainer_plugin/README.md` has the lines for each.

Importing this package imports no framework. A module of it without its framework is an ImportError that names it.

The environment of all processes of the job says what no framework has an option for:

    ROUTING_REPLAY_ENDPOINT      where the service is, with all that routing_replay.Client takes beside it
    ROUTING_REPLAY_TRAINING_RUN  the run's name, in the place of the experiment's
    ROUTING_REPLAY_TTL           seconds after which an idle sample is removed, for the process that makes the run
    ROUTING_REPLAY_MODE          mode of `megatron.attach`: R3 if absent; shadow compares and changes nothing
"""
