"""A rollout worker: sends the routed experts in the answers of vLLM and SGLang servers to routing-replay."""

import json
import os
import urllib.request

import routing_replay as rr
from routing_replay import http
from routing_replay.engines import sglang, vllm


def post(url, **body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return http.routed_experts(reply.read())  # Like json.loads, but does not copy routed experts.


run = rr.Client().run("grpo-42", rr.Geometry.from_hf_config(os.environ["MODEL_CONFIG"]))
prompt = [11, 12, 13, 14, 15]

# vLLM, started with --enable-return-routed-experts: two answers to one prompt.
url = os.environ["VLLM_URL"] + "/v1/completions"
reply = post(url, model="m", prompt=prompt, n=2, max_tokens=12, return_token_ids=True)
for j in range(2):
    run.append(f"step1/math-7/{j}", vllm.rows(reply, j), group=1, weight_version=17, seal=True)

# SGLang, started with the same flag: an agent of three turns. Each turn requests only the new rows.
agent, context = run.trajectory("step1/agent-3", group=1), list(prompt)
for _ in range(3):
    start = agent.next_row(context)
    reply = post(os.environ["SGLANG_URL"] + "/generate", input_ids=context, sampling_params={"max_new_tokens": 9},
                 return_routed_experts=True, routed_experts_start_len=start)  # fmt: skip
    agent.add(sglang.rows(reply, run.geometry, start_len=start, prompt_token_ids=context), weight_version=17)
    context += [*reply["output_ids"], 901, 902]  # Tokens of a tool's answer.
agent.seal()
run.flush()  # Raises an error for rejected appends.
