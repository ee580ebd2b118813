"""slime's rollout manager and its Megatron actor as Ray runs them here."""

from __future__ import annotations

import sides

sides.setup()
import gpt  # noqa: E402
import slime.ray.rollout as slime_rollout  # noqa: E402
from slime.backends.megatron_utils import actor as slime_actor  # noqa: E402
from slime.ray.train_actor import TrainRayActor  # noqa: E402


class Manager(slime_rollout.RolloutManager.__ray_metadata__.modified_class):
    """It starts no engines: args say where one is."""

    def __init__(self, args: sides.Args) -> None:
        slime_rollout.start_rollout_servers = lambda *_: ({}, [])
        super().__init__(args, None)


class Trainer(slime_actor.MegatronTrainRayActor):
    def init(self, args: sides.Args) -> None:
        TrainRayActor.init(self, args, "actor")
        layout = gpt.Layout(cp=self._world_size)
        layout.start()
        sides.prepare(self, args, layout, "full")
        self.weights_backuper.backup("ref")
        self.found: dict[str, sides.Counter] = {}

    def compute_log_prob(self, *args, store_prefix: str = "", **options):
        answer = super().compute_log_prob(*args, store_prefix=store_prefix, **options)
        self._take(store_prefix or "log-probabilities")
        return answer

    def look(self) -> dict[str, sides.Counter]:
        """(layer, experts) of all rows that this rank's routers have seen since, by pass."""
        self._take("training")
        found, self.found = self.found, {}
        return found

    def _take(self, name: str) -> None:
        self.found[name] = sides.counted(self.seen.calls)
        self.seen.calls.maps.clear()
