"""Variants of the framework's rollout manager and of its Megatron actor, which Ray runs in these tests."""

from __future__ import annotations

import sides

sides.setup()
import gpt  # noqa: E402

rollouts, actors = sides.part("ray.rollout"), sides.part("backends.megatron_utils.actor")


hooked: list[str] = []  # The names of the passes before which the user's hooks were called.


def before_log_prob(args: sides.Args, model: object, store_prefix: str) -> None:
    hooked.append(store_prefix)


def before_train_step(args: sides.Args, rollout_id: int, step_id: int, *_: object) -> None:
    hooked.append(f"step {step_id}")


class Manager(rollouts.RolloutManager.__ray_metadata__.modified_class):
    """A rollout manager that starts no engines. The arguments contain the address of the engine that the test has
    started."""

    def __init__(self, args: sides.Args) -> None:
        rollouts.start_rollout_servers = lambda *_: ({}, [])
        super().__init__(args, None)


class Trainer(actors.MegatronTrainRayActor):
    def init(self, args: sides.Args) -> None:
        actors.TrainRayActor.init(self, args, "actor")
        layout = gpt.Layout(cp=self._world_size)
        layout.start()
        sides.prepare(self, args, layout, "full")
        for other in sides.own.OTHERS:
            self.weights_backuper.backup(other)
        self.found: dict[str, sides.Counter] = {}

    def compute_log_prob(self, *args, store_prefix: str = "", **options):
        answer = super().compute_log_prob(*args, store_prefix=store_prefix, **options)
        self._take(store_prefix or "log-probabilities")
        return answer

    def look(self) -> dict[str, sides.Counter]:
        """Returns for each pass since the last call how many rows of this rank's routers had each (layer, experts)."""
        self._take("training")
        found, self.found = self.found, {}
        return found

    def hooked(self) -> list[str]:
        """Returns the passes before which the user's hooks were called since the last call."""
        found = hooked.copy()
        hooked.clear()
        return found

    def _take(self, name: str) -> None:
        self.found[name] = sides.counted(self.seen.calls)
        self.seen.calls.maps.clear()
