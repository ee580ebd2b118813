"""The integration of NeMo-RL with its synchronous vLLM engine and its Megatron policy. The script that starts NeMo-RL
imports `driver`; the workers, each with its own installed packages, import `generation` and `policy`."""
