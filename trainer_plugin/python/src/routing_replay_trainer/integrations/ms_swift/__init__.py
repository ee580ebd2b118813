"""The integration of Megatron-SWIFT 4.6 (`megatron rlhf --rlhf_type grpo`), which takes the path of a plug-in file:
`python -m` of this package prints the path of ours."""
