"""NeMo-RL with its synchronous vLLM engine and its Megatron policy: `driver` is imported by the script that starts it,
`generation` and `policy` by the workers, each of which has packages of its own."""
