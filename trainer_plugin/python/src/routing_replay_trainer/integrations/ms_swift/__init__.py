"""Megatron-SWIFT 4.6 (`megatron rlhf --rlhf_type grpo`), which reads plug-ins as files: `python -m` of this package
prints the path of ours."""
