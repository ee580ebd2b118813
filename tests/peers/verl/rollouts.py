"""The rollout side of verl: an engine that answers with random tokens and routes, a reward, and an agent loop that ends
with a tool's answer. Each runs in Ray workers."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from support import random_routes
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.workers.rollout.replica import TokenOutput

LAYERS, EXPERTS, TOP_K, VOCABULARY = 4, 8, 2, 1000
# A prompt with one of these words gets an answer that ends early, an answer without rows, or, once, an error.
INTERRUPTED, UNROUTED, BROKEN = 11, 12, 13
TOOL = [5, 6, 7]  # The tool's answer.


class Engine:
    """Has the same interface as verl's server of an engine (vLLMHttpServer.generate)."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(7)
        self.version = 0
        self.calls: list[tuple[list[int], int, bool, np.ndarray]] = []
        self.failures = 0

    def set_version(self, version: int) -> None:
        self.version = version

    def given(self) -> list[tuple[list[int], int, bool, np.ndarray]]:
        """Returns (tokens, number of prompt tokens, whether the answer was cut short, rows) of each call."""
        return self.calls

    def failed(self) -> int:
        return self.failures

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict, **_: Any) -> TokenOutput:
        await asyncio.sleep(0)
        if BROKEN in prompt_ids and self.failures == 0:
            self.failures += 1
            raise RuntimeError("the engine is gone")
        aborted = INTERRUPTED in prompt_ids and len(prompt_ids) == 2  # Only the first part.
        count = int(self.random.integers(4, 9))
        answer = self.random.integers(20, VOCABULARY, count).tolist()
        tokens = [*prompt_ids, *answer]
        rows = random_routes(self.random, len(tokens) - 1, LAYERS, EXPERTS, TOP_K).astype(np.uint8)
        self.calls.append((tokens, len(prompt_ids), aborted, rows))
        return TokenOutput(
            token_ids=answer,
            log_probs=[-1.0] * count,
            routed_experts=None if UNROUTED in prompt_ids else rows,
            stop_reason="aborted" if aborted else "completed",
            num_preempted=0,
            extra_fields={"global_steps": self.version - aborted},
        )


class Reward:
    def __init__(self) -> None:
        self.random = np.random.default_rng(8)

    def compute_score(self, data: Any) -> dict[str, Any]:
        return {"reward_score": float(self.random.random()), "reward_extra_info": {}}


class ToolLoop(AgentLoopBase):
    """Answers twice. Each answer becomes a trajectory that ends with a tool's answer; no engine has processed the last
    one."""

    async def run(self, sampling_params: dict[str, Any], **prompt: Any) -> list[AgentLoopOutput]:
        prompt_ids = await self.ct_build_initial_tokens(list(prompt["raw_prompt"]))
        outputs, response, mask, log_probs = [], [], [], []
        for turn in range(2):
            said = await self.server_manager.generate(
                request_id=f"{prompt['uid']}{prompt['session_id']}{turn}",
                prompt_ids=[*prompt_ids, *response],
                sampling_params=sampling_params,
            )
            response += [*said.token_ids, *TOOL]
            mask += [1] * len(said.token_ids) + [0] * len(TOOL)
            log_probs += [*said.log_probs, *[0.0] * len(TOOL)]
            outputs.append(
                AgentLoopOutput(
                    prompt_ids=prompt_ids,
                    response_ids=list(response),
                    response_mask=list(mask),
                    response_logprobs=list(log_probs),
                    routed_experts=said.routed_experts,
                    num_turns=2 * turn + 2,
                    metrics=AgentLoopMetrics(),
                    extra_fields=said.extra_fields | {"turn_scores": [], "tool_rewards": []},
                )
            )
        return outputs
